"""`release`: a store may take replicas again; or a resource goes that is being deleted and cannot come to an end.

A Table waits for the word of every store that may hold data of it, and a StoreCluster for its pods and for etcd. Where
one of them will never answer, somebody has to say that nobody needs to wait.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from evenkeel.cli.output import Output
from evenkeel.cli.printing import tell
from evenkeel.cli.resource_output import split_name, what_is
from evenkeel.cli.session import Session
from evenkeel.cli.table_commands import drain
from evenkeel.controller.table_reconciler import RELEASE_ANNOTATION
from evenkeel.errors import InvalidInputError
from evenkeel.model.loading import Resource
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table

__all__ = ["release"]

_POLL_SECONDS: Final = 0.2
_PATIENCE: Final = 60.0


async def release(session: Session, what: str, output: Output = Output.TABLE, *, wait: bool = True) -> None:
    """End a drain, or a deletion that is stuck."""
    if "/" not in what:
        await drain(session, what, output, undo=True, wait=False)
        return
    kind, name = split_name(what)
    if kind not in (Table, StoreCluster):
        raise InvalidInputError(f"{what}: only stores, tables and storeclusters can be released")
    await session.resources.change(kind, name, lambda document: _let_go(what, document))
    if wait:
        await _until_gone(session, kind, name)
    result = "is gone" if wait else "is being let go"
    tell(f"{what_is(kind, name)} {result}", output, kind=kind.__name__, name=name, result=result)


def _let_go(what: str, document: dict[str, Any]) -> None:
    metadata = document["metadata"]
    if "deletionTimestamp" not in metadata:
        raise InvalidInputError(f"{what} is not being deleted, so there is nothing to release; delete it first")
    metadata.setdefault("annotations", {})[RELEASE_ANNOTATION] = "true"


async def _until_gone(session: Session, kind: type[Resource], name: str) -> None:
    until = time.monotonic() + _PATIENCE
    while await session.resources.get(kind, name) is not None:
        if time.monotonic() > until:
            raise InvalidInputError(
                f"{what_is(kind, name)} is still there after {_PATIENCE:g} s, though nobody has to be waited for: is "
                "there an operator? Where it is gone for good, `kubectl patch` the finalizers away"
            )
        await asyncio.sleep(_POLL_SECONDS)

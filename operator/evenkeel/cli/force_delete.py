"""`force-delete`: finish a deletion that is stuck.

The deletion of a Table waits until every store has confirmed that it dropped the data; that of a StoreCluster waits for
its pods and for etcd. `force-delete` ends the wait where one of them will never answer.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from evenkeel.cli.cluster_session import Session
from evenkeel.cli.options import Output
from evenkeel.cli.resource_output import display_name, split_name
from evenkeel.cli.terminal_output import print_result
from evenkeel.controller.table_reconciler import FORCE_DELETE_ANNOTATION
from evenkeel.errors import InvalidInputError
from evenkeel.model.resource_loading import Resource
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table

__all__ = ["force_delete"]

_POLL_SECONDS: Final = 0.2
_TIMEOUT: Final = 60.0


async def force_delete(session: Session, what: str, output: Output = Output.TABLE, *, wait: bool = True) -> None:
    """Finish the deletion of a Table or a StoreCluster without waiting for confirmations."""
    kind, name = split_name(what)
    if kind not in (Table, StoreCluster):
        raise InvalidInputError(f"{what}: only tables and storeclusters can be force-deleted")
    await session.resources.change(kind, name, lambda document: _mark(what, document))
    if wait:
        await _until_gone(session, kind, name)
    result = "deleted" if wait else "is being deleted"
    print_result(f"{display_name(kind, name)} {result}", output, kind=kind.__name__, name=name, result=result)


def _mark(what: str, document: dict[str, Any]) -> None:
    metadata = document["metadata"]
    if "deletionTimestamp" not in metadata:
        raise InvalidInputError(f"{what} is not being deleted; delete it first")
    metadata.setdefault("annotations", {})[FORCE_DELETE_ANNOTATION] = "true"


async def _until_gone(session: Session, kind: type[Resource], name: str) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while await session.resources.get(kind, name) is not None:
        if time.monotonic() > deadline:
            raise InvalidInputError(
                f"{display_name(kind, name)} still exists after {_TIMEOUT:g} s: check that the operator is running; "
                "if it was uninstalled, remove the finalizers with `kubectl patch`"
            )
        await asyncio.sleep(_POLL_SECONDS)

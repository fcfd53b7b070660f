"""`dropped`, `undelete` and `purge`: deleted tables whose data is kept.

All of them go by the StoreClusters: their statuses list what is kept, and their annotations ask for what is to be done
with it. So they are the same on a local cluster and on Kubernetes.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple

from evenkeel.cli.live import show
from evenkeel.cli.output import Output
from evenkeel.cli.printing import Listing, size, tell
from evenkeel.cli.resource_output import split_name, what_is
from evenkeel.cli.session import Session
from evenkeel.controller.dropped_table_reconciler import PURGE_ANNOTATION, UNDELETE_ANNOTATION
from evenkeel.errors import InvalidInputError
from evenkeel.model.storecluster import DroppedTable, StoreCluster
from evenkeel.model.table import Table

__all__ = ["dropped", "purge", "undelete"]

_HEAD: Final = ("TABLE", "STORECLUSTER", "DELETED", "KEPT UNTIL", "SIZE")
_POLL_SECONDS: Final = 0.2
_PATIENCE: Final = 60.0


class _Found(NamedTuple):
    cluster: str
    dropped: DroppedTable

    @property
    def key(self) -> str:
        return f"{self.dropped.table}.{self.dropped.uid}"

    @property
    def size(self) -> str:
        return "-" if self.dropped.bytes is None else size(self.dropped.bytes)


async def dropped(session: Session, output: Output) -> None:
    """List the deleted tables whose data is kept."""

    async def look() -> Listing:
        found = await _all(session)
        rows = [
            (one.key, one.cluster, one.dropped.deleted_at, one.dropped.kept_until or "purged", one.size)
            for one in found
        ]
        data = [
            {"storeCluster": one.cluster, **one.dropped.model_dump(mode="json", by_alias=True, exclude_none=True)}
            for one in found
        ]
        return Listing(_HEAD, rows, data)

    await show(look, output, watch=False)


async def undelete(session: Session, what: str, output: Output = Output.TABLE, *, wait: bool = True) -> None:
    """Restore a deleted table with its data."""
    found = await _one(session, what)
    name = found.dropped.table
    if await session.resources.get(Table, name) is not None:
        raise InvalidInputError(f"a Table {name} exists, so {found.key} cannot be undeleted; delete or rename it first")
    await _ask(session, found, UNDELETE_ANNOTATION)
    if wait:
        await _until_done(session, found, f"table {found.key} is not undeleted")
        await _until_there(session, name)
    result = "undeleted" if wait else "is being undeleted"
    tell(f"{what_is(Table, name)} {result}", output, kind="Table", name=name, result=result)


async def purge(session: Session, what: str, output: Output = Output.TABLE, *, wait: bool = True) -> None:
    """Remove the data of a deleted table now."""
    found = await _one(session, what)
    await _ask(session, found, PURGE_ANNOTATION)
    if wait:
        await _until_done(session, found, f"the data of table {found.key} is not removed")
    result = "purged" if wait else "is being purged"
    tell(f"table {found.key} {result}", output, table=found.key, result=result)


async def _all(session: Session) -> list[_Found]:
    clusters = await session.resources.all_of(StoreCluster)
    told = [(one.metadata.name, one.status.dropped) for one in clusters if one.status is not None]
    return [_Found(name, dropped) for name, kept in told for dropped in kept]


async def _one(session: Session, what: str) -> _Found:
    """The one that is meant, by its name or, where several had it, by `<name>.<uid>`."""
    kind, name = split_name(what)
    there = await _all(session)
    found = [one for one in there if name in (one.key, one.dropped.table)]
    if kind is Table and len(found) == 1:
        return found[0]
    listed = ", ".join(one.key for one in (found or there)) or "none is kept"
    raise InvalidInputError(f"{what}: got {name!r}; allowed: one deleted table whose data is kept ({listed})")


async def _ask(session: Session, found: _Found, annotation: str) -> None:
    def edit(document: dict[str, Any]) -> None:
        annotations = document["metadata"].setdefault("annotations", {})
        asked = {one for one in annotations.get(annotation, "").split(",") if one}
        annotations[annotation] = ",".join(sorted(asked | {found.key}))

    await session.resources.change(StoreCluster, found.cluster, edit)


async def _until_done(session: Session, found: _Found, failed: str) -> None:
    """Wait until the request was struck off and nothing is kept any more."""
    until = time.monotonic() + _PATIENCE
    while found.key in {one.key for one in await _all(session)}:
        if time.monotonic() > until:
            raise InvalidInputError(
                f"{failed} after {_PATIENCE:g} s: see `{session.program} get storecluster {found.cluster}`; nothing is "
                "done while it is paused, and stores that do not answer are waited for"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _until_there(session: Session, name: str) -> None:
    until = time.monotonic() + _PATIENCE
    while await session.resources.get(Table, name) is None:
        if time.monotonic() > until:
            raise InvalidInputError(f"Table {name} is not there after {_PATIENCE:g} s: is there an operator?")
        await asyncio.sleep(_POLL_SECONDS)

"""`dropped`, `undelete` and `purge`: deleted tables whose data is kept.

The status of a StoreCluster lists its dropped tables. Annotations of the StoreCluster request `undelete` and `purge`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple

from evenkeel.cli.cluster_session import Session
from evenkeel.cli.options import Output
from evenkeel.cli.resource_output import display_name, split_name
from evenkeel.cli.terminal_output import Listing, print_result, size
from evenkeel.cli.watch_output import show
from evenkeel.controller.dropped_table_reconciler import PURGE_ANNOTATION, UNDELETE_ANNOTATION
from evenkeel.errors import InvalidInputError
from evenkeel.model.storecluster import DroppedTable, StoreCluster
from evenkeel.model.table import Table

__all__ = ["dropped", "purge", "undelete"]

_HEAD: Final = ("TABLE", "STORECLUSTER", "DELETED", "KEPT UNTIL", "SIZE")
_POLL_SECONDS: Final = 0.2
_TIMEOUT: Final = 60.0


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

    async def fetch() -> Listing:
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

    await show(fetch, output, watch=False)


async def undelete(session: Session, what: str, output: Output = Output.TABLE, *, wait: bool = True) -> None:
    """Restore a deleted table with its data."""
    found = await _one(session, what)
    name = found.dropped.table
    if await session.resources.get(Table, name) is not None:
        raise InvalidInputError(f"cannot undelete {found.key}: a Table {name} exists; delete that Table first")
    await _request(session, found, UNDELETE_ANNOTATION)
    if wait:
        await _until_done(session, found, f"table {found.key} is not undeleted")
        await _until_restored(session, name)
    result = "undeleted" if wait else "is being undeleted"
    print_result(f"{display_name(Table, name)} {result}", output, kind="Table", name=name, result=result)


async def purge(session: Session, what: str, output: Output = Output.TABLE, *, wait: bool = True) -> None:
    """Remove the data of a deleted table now."""
    found = await _one(session, what)
    await _request(session, found, PURGE_ANNOTATION)
    if wait:
        await _until_done(session, found, f"table {found.key} is not purged")
    result = "purged" if wait else "is being purged"
    print_result(f"table {found.key} {result}", output, table=found.key, result=result)


async def _all(session: Session) -> list[_Found]:
    clusters = await session.resources.all_of(StoreCluster)
    reported = [(one.metadata.name, one.status.dropped) for one in clusters if one.status is not None]
    return [_Found(name, dropped) for name, kept in reported for dropped in kept]


async def _one(session: Session, what: str) -> _Found:
    """Find a dropped table by its name, or by `<name>.<uid>` where several had that name."""
    kind, name = split_name(what)
    kept = await _all(session)
    found = [one for one in kept if name in (one.key, one.dropped.table)]
    if kind is Table and len(found) == 1:
        return found[0]
    listed = ", ".join(one.key for one in (found or kept)) or "there are none"
    raise InvalidInputError(f"{what}: got {name!r}; allowed: a deleted table whose data is kept ({listed})")


async def _request(session: Session, found: _Found, annotation: str) -> None:
    def edit(document: dict[str, Any]) -> None:
        annotations = document["metadata"].setdefault("annotations", {})
        requested = {one for one in annotations.get(annotation, "").split(",") if one}
        annotations[annotation] = ",".join(sorted(requested | {found.key}))

    await session.resources.change(StoreCluster, found.cluster, edit)


async def _until_done(session: Session, found: _Found, failed: str) -> None:
    """Wait until the StoreCluster no longer lists the dropped table."""
    deadline = time.monotonic() + _TIMEOUT
    while found.key in {one.key for one in await _all(session)}:
        if time.monotonic() > deadline:
            raise InvalidInputError(
                f"{failed} after {_TIMEOUT:g} s: the StoreCluster is paused, or a store does not answer; "
                f"see `{session.program} get storecluster {found.cluster}`"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _until_restored(session: Session, name: str) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while await session.resources.get(Table, name) is None:
        if time.monotonic() > deadline:
            raise InvalidInputError(
                f"Table {name} is not restored after {_TIMEOUT:g} s: check that the operator is running"
            )
        await asyncio.sleep(_POLL_SECONDS)

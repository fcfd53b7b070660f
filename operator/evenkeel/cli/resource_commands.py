"""Verbs on resources of any kind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

from evenkeel.cli.cluster_session import Session
from evenkeel.cli.options import Output
from evenkeel.cli.resource_output import conditions_of, display_name, kind_of, listing, notes_of, split_name
from evenkeel.cli.terminal_output import Listing, print_json, print_line, print_result
from evenkeel.cli.validate_command import Checked
from evenkeel.cli.watch_output import show
from evenkeel.controller.table_reconciler import PAUSED_ANNOTATION
from evenkeel.errors import InvalidInputError
from evenkeel.model.conditions import ConditionType
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.resource_loading import Resource
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table

if TYPE_CHECKING:
    from evenkeel.cli.local_session import LocalSession

__all__ = ["apply", "delete", "get", "pause", "scale", "status", "wait_for"]

_POLL_SECONDS: Final = 0.2
_ORDER: Final = (StoreCluster, Table, PartitionAssignment, RebalancePlan)
"""The order in which resources are applied: those that others refer to first."""


async def apply(session: LocalSession, checked: Checked, output: Output) -> None:
    """Create or update resources; a refused one does not keep the others from being applied."""
    done, refused = [], []
    for _, _, resource in sorted(checked.resources, key=lambda found: _ORDER.index(type(found[2]))):
        try:
            outcome = await session.resources.apply(resource)
        except InvalidInputError as error:
            refused.append(str(error))
            continue
        done.append({"kind": resource.kind, "name": resource.metadata.name, "result": outcome.value})
        if output is Output.TABLE:
            print_line(f"{display_name(type(resource), resource.metadata.name)} {outcome.value}")
    if output is Output.JSON:
        print_json(done)
    if refused:
        raise InvalidInputError("\n".join(refused))


async def get(session: Session, what: str, name: str, output: Output, *, watch: bool) -> None:
    """List resources of a kind, or show one."""
    kind, name = split_name(what) if not name and "/" in what else (kind_of(what), name)

    async def fetch() -> Listing:
        if name:
            return listing(kind, [await session.resources.need(kind, name)], one=True, program=session.program)
        return listing(kind, await session.resources.all_of(kind))

    await show(fetch, output, watch=watch)


async def status(session: Session, output: Output, *, watch: bool) -> None:
    """Show all tables and StoreClusters, and their problems."""

    async def fetch() -> Listing:
        clusters: Sequence[Resource] = await session.resources.all_of(StoreCluster)
        tables: Sequence[Resource] = await session.resources.all_of(Table)
        problems = [(one, note) for one in (*clusters, *tables) for note in notes_of(one, session.program)]
        notes = [f"{display_name(type(one), one.metadata.name)}: {note}" for one, note in problems]
        rows = listing(StoreCluster, clusters).rows
        stores = [
            f"storecluster {name}: {stores} stores, {tables} tables, {replicas} replicas, version {version}"
            for name, _, stores, tables, replicas, version, *_ in rows
        ]
        data = {
            "storeClusters": [cluster.document() for cluster in clusters],
            "tables": [table.document() for table in tables],
        }
        found = listing(Table, tables)
        return Listing(found.head, found.rows, data, [*stores, *notes])

    await show(fetch, output, watch=watch)


async def delete(session: LocalSession, what: str, name: str, output: Output = Output.TABLE, *, wait: bool) -> None:
    """Delete a resource; with `wait`, return when it is gone."""
    kind, name = (kind_of(what), name) if name else split_name(what)
    kept = _kept(await session.resources.get(Table, name)) if kind is Table else ""
    await session.resources.delete(kind, name)
    while wait and await session.resources.get(kind, name) is not None:  # noqa: ASYNC110 - another process removes it
        await asyncio.sleep(_POLL_SECONDS)
    result = "deleted" if wait else "is being deleted"
    print_result(f"{display_name(kind, name)} {result}{kept}", output, kind=kind.__name__, name=name, result=result)


def _kept(table: Table | None) -> str:
    """Return the note on how long the data of a deleted table is kept."""
    if table is None or (table.spec.deletion_policy == "Delete" and not table.spec.undelete_for.seconds):
        return ""
    retained = table.spec.deletion_policy == "Retain"
    return f"; its data is kept {'until it is purged' if retained else f'for {table.spec.undelete_for}'}"


async def scale(session: LocalSession, what: str, output: Output = Output.TABLE, *, replicas: int) -> None:
    """Set the replicas of a table or the stores of a StoreCluster."""
    kind, name = split_name(what)
    field = {Table: "replicas", StoreCluster: "stores"}.get(kind)
    if field is None:
        raise InvalidInputError(f"{what}: only tables and storeclusters can be scaled")

    def edit(document: dict[str, Any]) -> None:
        document["spec"][field] = replicas

    await session.resources.change(kind, name, edit)
    print_result(
        f"{display_name(kind, name)} scaled", output, kind=kind.__name__, name=name, result="scaled", replicas=replicas
    )


async def pause(session: Session, what: str, output: Output = Output.TABLE, *, resume: bool) -> None:
    """Pause or resume a table, or all tables of a StoreCluster."""
    kind, name = split_name(what)
    if kind not in (Table, StoreCluster):
        raise InvalidInputError(f"{what}: only tables and storeclusters can be paused")

    def edit(document: dict[str, Any]) -> None:
        if resume and document["spec"].get("paused"):
            raise InvalidInputError(f"{what}: spec.paused: got true; allowed: false; change it in the spec")
        annotations = document["metadata"].setdefault("annotations", {})
        annotations.pop(PAUSED_ANNOTATION, None)
        if not resume:
            annotations[PAUSED_ANNOTATION] = "true"

    await session.resources.change(kind, name, edit)
    words = "resumed" if resume else "paused: moves in progress finish, no new move starts"
    print_result(
        f"{display_name(kind, name)} {words}", output, kind=kind.__name__, name=name, result=words.partition(":")[0]
    )


async def wait_for(
    session: Session, what: str, condition: str, output: Output = Output.TABLE, *, within: float
) -> None:
    """Wait until a condition of a resource is True for its current spec."""
    kind, name = split_name(what)
    if condition not in get_args(ConditionType):
        allowed = ", ".join(get_args(ConditionType))
        raise InvalidInputError(f"--for: got {condition!r}; allowed: one of {allowed}")
    try:
        async with asyncio.timeout(within):
            while not _holds(await session.resources.need(kind, name), condition):  # noqa: ASYNC110 - others write it
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        why = "; ".join(notes_of(await session.resources.need(kind, name), session.program))
        raise InvalidInputError(f"{what}: {condition} is not True after {within:g} s{': ' * bool(why)}{why}") from None
    print_result(f"{display_name(kind, name)} is {condition}", output, kind=kind.__name__, name=name, result=condition)


def _holds(found: Resource, condition: str) -> bool:
    if found.status is None or found.status.observed_generation < found.metadata.generation:
        return False
    return any(entry.type == condition and entry.status == "True" for entry in conditions_of(found))

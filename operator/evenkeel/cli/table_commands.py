"""The verbs on tables, their partitions and plans, and on single stores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from evenkeel.cli.live import show
from evenkeel.cli.output import Output
from evenkeel.cli.printing import Listing, print_json, print_table, say, size, span, tell
from evenkeel.cli.resource_output import split_name, what_is
from evenkeel.cli.session import PreviewedPlan, Session
from evenkeel.errors import InvalidInputError
from evenkeel.model.base import API_VERSION
from evenkeel.model.loading import parse
from evenkeel.model.partitionassignment import PartitionStatus
from evenkeel.model.rebalanceplan import RebalancePlan, WhatIf
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.reconcile.leader_orders import LEADERS_ANNOTATION, parse_leaders, spell_leaders
from evenkeel.reconcile.plan_history import explain_partition
from evenkeel.reconcile.store_states import DRAIN_ANNOTATION

if TYPE_CHECKING:
    from evenkeel.cli.local_session import LocalSession

__all__ = [
    "approve",
    "drain",
    "explain",
    "partitions",
    "plan",
    "store_of",
    "transfer_leader",
    "whereabouts",
]

_POLL_SECONDS: Final = 0.2


def _table_name(what: str) -> str:
    """`table/orders`, or `orders`."""
    kind, name = split_name(what)
    if kind is not Table:
        raise InvalidInputError(f"table: got {what!r}; allowed: a table, as in orders or table/orders")
    return name


# Partitions


async def partitions(session: Session, what: str, output: Output, *, watch: bool) -> None:
    """Where each partition is, who leads it, and how far its change is."""
    name = _table_name(what)

    async def look() -> Listing:
        await session.resources.need(Table, name)
        found = await _partitions(session, name)
        data = [status.model_dump(mode="json", by_alias=True) for status in found]
        return Listing(_PARTITION_HEAD, [_partition_row(status) for status in found], data)

    await show(look, output, watch=watch)


async def _partitions(session: Session, name: str) -> list[PartitionStatus]:
    slices = await session.resources.assignments(name)
    return [status for piece in slices if piece.status for status in piece.status.partitions]


_PARTITION_HEAD: Final = ("PARTITION", "LEADER", "STAGE", "STABLE", "PENDING", "PLANNED", "PROGRESS", "REASON")


def _partition_row(status: PartitionStatus) -> Sequence[object]:
    def peers(found: Sequence[Any]) -> str:
        return ",".join(peer.store + ("*" if peer.role == "Learner" else "") for peer in found) or "-"

    pending = " > ".join(peers(step) for step in status.pending) or "-"
    progress = f"{status.progress}%" if status.pending else "-"
    stable, planned = peers(status.stable), peers(status.planned)
    return (
        *(status.partition, status.leader or "-", status.stage, stable, pending, planned, progress),
        status.reason or "-",
    )


async def _partition(session: Session, name: str, partition: int) -> PartitionStatus:
    table = await session.resources.need(Table, name)
    if partition >= table.spec.partitions:
        allowed = f"0 to {table.spec.partitions - 1}, the partitions of table {name}"
        raise InvalidInputError(f"partition: got {partition}; allowed: {allowed}")
    found = await _partitions(session, name)
    if partition >= len(found):
        raise InvalidInputError(
            f"table {name}: nothing is known of its partitions yet; `{session.program} wait table/{name}`"
        )
    return found[partition]


async def transfer_leader(
    session: Session, what: str, partition: int, store: str, output: Output = Output.TABLE, *, release: bool
) -> None:
    """Have a store lead a partition from now on; or let the plan say who leads it."""
    name = _table_name(what)
    status = await _partition(session, name, partition)
    voting = [peer.store for peer in status.stable if peer.role == "Voter"]
    if not release and store not in voting:
        raise InvalidInputError(
            f"store: got {store!r}; allowed: one that votes for partition {partition} of table {name} "
            f"({', '.join(voting)})"
        )

    def edit(document: dict[str, Any]) -> None:
        annotations = document["metadata"].setdefault("annotations", {})
        before = parse_leaders(annotations.get(LEADERS_ANNOTATION, ""))
        chosen = {p: leader for p, leader in before.items() if p != partition}
        annotations[LEADERS_ANNOTATION] = spell_leaders(chosen if release else {**chosen, partition: store})

    await session.resources.change(Table, name, edit)
    words = "is led by whom the plan wants" if release else f"is to be led by {store}"
    told = {"table": name, "partition": partition, "leader": None if release else store}
    tell(f"partition {partition} of table {name} {words}", output, **told)


async def explain(session: LocalSession, what: str, partition: int, output: Output) -> None:
    """Why a partition is where it is: what the plans of late wanted of it."""
    name = _table_name(what)
    table = await session.resources.need(Table, name)
    status = await _partition(session, name, partition)
    keys, key = session.keys(table.spec.store_cluster), await session.key_of(table)
    kvs = (await session.metastore.range(keys.plans(key))).kvs
    told = explain_partition(kvs, partition, keys=keys, table=key)
    data = {
        "partition": status.model_dump(mode="json", by_alias=True),
        "plans": [{"plan": entry.plan, "stores": list(entry.stores), "moves": list(entry.moves)} for entry in told],
    }
    rows = [(entry.plan, ",".join(entry.stores), "; ".join(entry.moves) or "it stays") for entry in told]
    notes = [
        f"now: {status.stage}, led by {status.leader or 'nobody'}" + (f"; {status.reason}" if status.reason else "")
    ]

    async def look() -> Listing:
        return Listing(("PLAN", "STORES", "WHY"), rows, data, notes)

    await show(look, output)


# Plans


async def plan(session: Session, what: str, imagine: dict[str, Any], output: Output) -> None:
    """What would move, why, how many bytes and how long; changes nothing."""
    name = _table_name(what)
    what_if = _what_if(name, imagine)
    preview = await session.preview(await session.resources.need(Table, name), what_if)
    if output is Output.JSON:
        print_json(_plan_document(preview))
        return
    rows = [
        (move.partition, move.source or "-", move.target or "-", "-" if move.bytes is None else size(move.bytes),
         move.reason)
        for move in preview.moves
    ]  # fmt: skip
    if rows:
        print_table(("PARTITION", "FROM", "TO", "SIZE", "WHY"), rows)
    if rows and preview.totals.moves > len(rows):
        say(f"and {preview.totals.moves - len(rows)} more")
    say(_summary(name, preview, session.program))


def _what_if(name: str, imagine: dict[str, Any]) -> WhatIf:
    """What is to be imagined, checked as if it stood in a file."""
    wanted = {field: value for field, value in imagine.items() if value is not None}
    spec = {"table": name, "dryRun": True, "whatIf": wanted}
    document = {"apiVersion": API_VERSION, "kind": "RebalancePlan", "metadata": {"name": "preview"}, "spec": spec}
    found = parse(document, "what if")
    assert isinstance(found, RebalancePlan)
    return found.spec.what_if or WhatIf()


def _plan_document(preview: PreviewedPlan) -> dict[str, Any]:
    moves = [
        {
            "partition": move.partition,
            "from": move.source,
            "to": move.target,
            "bytes": move.bytes,
            "reason": move.reason,
        }
        for move in preview.moves
    ]
    head = {"number": preview.number, "hash": preview.hash, "sameAs": preview.same_as}
    return {**head, "totals": preview.totals.model_dump(mode="json", by_alias=True), "moves": moves}


def _summary(name: str, preview: PreviewedPlan, program: str) -> str:
    totals, same = preview.totals, preview.same_as
    if same is not None and preview.awaits_approval:
        return f"this is plan {same}, which waits: `{program} approve plan/{name}-{same}`"
    if not totals.partitions and not totals.leader_moves:
        return "nothing would move"
    bytes_ = f", {size(totals.bytes)} to copy" if totals.bytes else ""
    seconds = f" in about {span(totals.seconds)}" if totals.seconds else ""
    counted = f"{totals.moves} moves of {totals.partitions} partitions, {totals.leader_moves} other leaders"
    if same is not None:
        return f"left of plan {same}: {counted}{bytes_}{seconds}"
    return f"plan {preview.number} would be: {counted}{bytes_}{seconds}; nothing was changed"


async def approve(session: Session, what: str, output: Output = Output.TABLE, *, digest: str) -> None:
    """Let a plan begin that waits for it; with `digest` only if it is still that plan."""
    kind, name = split_name(what, default="plan")
    if kind is not RebalancePlan:
        raise InvalidInputError(f"plan: got {what!r}; allowed: a plan, as in plan/orders-7")
    found = await session.resources.need(RebalancePlan, name)
    if found.status is None or found.status.state != "AwaitingApproval":
        state = (found.status.state if found.status is not None else None) or "unknown"
        raise InvalidInputError(
            f"plan {name}: its state is {state}; allowed: AwaitingApproval, or there is nothing to do"
        )
    if digest and digest != found.status.hash:
        raise InvalidInputError(f"--hash: got {digest}; allowed: {found.status.hash}, the hash of plan {name}")
    approved = found.status.hash

    def edit(document: dict[str, Any]) -> None:
        document["spec"]["approvedHash"] = approved

    await session.resources.change(RebalancePlan, name, edit)
    moves = found.status.totals.moves
    words = f"{what_is(RebalancePlan, name)} approved: {moves} moves, hash {approved}"
    tell(words, output, plan=name, result="approved", moves=moves, hash=approved)


# Stores


async def store_of(session: Session, store: str) -> StoreCluster:
    """The StoreCluster that has a store; InvalidInputError where none has."""
    clusters = await session.resources.all_of(StoreCluster)
    for cluster in clusters:
        # As it is written in full: others would take main-00 for a store that is never there.
        if store in {f"{cluster.metadata.name}-{number}" for number in range(cluster.spec.stores)}:
            return cluster
    there = [_stores_of(cluster.metadata.name, cluster.spec.stores) for cluster in clusters]
    raise InvalidInputError(f"store: got {store!r}; allowed: {', '.join(there) or 'none, there is no StoreCluster'}")


def _stores_of(cluster: str, count: int) -> str:
    return f"{cluster}-0" if count == 1 else f"{cluster}-0 to {cluster}-{count - 1}"


async def drain(session: Session, store: str, output: Output = Output.TABLE, *, undo: bool, wait: bool) -> None:
    """Empty a store, or let it take replicas again."""
    name = (await store_of(session, store)).metadata.name

    def edit(document: dict[str, Any]) -> None:
        annotations = document["metadata"].setdefault("annotations", {})
        names = {one for one in annotations.get(DRAIN_ANNOTATION, "").split(",") if one}
        annotations[DRAIN_ANNOTATION] = ",".join(sorted(names - {store} if undo else names | {store}))

    await session.resources.change(StoreCluster, name, edit)
    words = "takes replicas again" if undo else "is being emptied"
    if undo or not wait:
        tell(f"store {store} {words}", output, store=store, result=words)
        return
    if output is Output.TABLE:
        say(f"store {store} {words}")
    await _until_empty(session, name, store, output)
    tell(f"store {store} is empty", output, store=store, result="is empty")


async def _until_empty(session: Session, cluster: str, store: str, output: Output) -> None:
    """Wait for others to empty it; people are told what holds it up."""
    told = ""
    while True:
        status = (await session.resources.need(StoreCluster, cluster)).status
        found = next((one for one in status.drains if one.store == store), None) if status is not None else None
        if found is not None and found.percentage == 100:
            return
        if found is not None and found.reason != told and output is Output.TABLE:
            told = found.reason
            say(f"it waits: {told}" if told else "it goes on")
        await asyncio.sleep(_POLL_SECONDS)


async def whereabouts(session: Session, what: str) -> tuple[str, str]:
    """A table's name, and its StoreCluster's."""
    table = await session.resources.need(Table, _table_name(what))
    return table.metadata.name, table.spec.store_cluster

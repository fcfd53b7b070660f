"""Verbs on tables, partitions, plans and stores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from evenkeel.cli.cluster_session import PreviewedPlan, Session
from evenkeel.cli.options import Output
from evenkeel.cli.resource_output import display_name, split_name
from evenkeel.cli.terminal_output import Listing, print_json, print_line, print_result, print_table, size, span
from evenkeel.cli.watch_output import show
from evenkeel.errors import InvalidInputError
from evenkeel.model.partitionassignment import PartitionStatus
from evenkeel.model.rebalanceplan import RebalancePlan, WhatIf
from evenkeel.model.resource_base import API_VERSION
from evenkeel.model.resource_loading import parse
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.reconcile.leader_orders import LEADERS_ANNOTATION, format_leaders, parse_leaders
from evenkeel.reconcile.plan_moves import explain_partition
from evenkeel.reconcile.store_states import DRAIN_ANNOTATION

if TYPE_CHECKING:
    from evenkeel.cli.local_session import LocalSession

__all__ = [
    "approve",
    "cluster_of_store",
    "drain",
    "explain",
    "hand_over",
    "partitions",
    "plan",
    "table_location",
]

_POLL_SECONDS: Final = 0.2


def _table_name(what: str) -> str:
    """Return the name of a table given as `table/orders` or `orders`."""
    kind, name = split_name(what)
    if kind is not Table:
        raise InvalidInputError(f"table: got {what!r}; allowed: a table, such as orders or table/orders")
    return name


# Partitions


async def partitions(session: Session, what: str, output: Output, *, watch: bool) -> None:
    """Show the stores, the leader and the progress of every partition."""
    name = _table_name(what)

    async def fetch() -> Listing:
        await session.resources.need(Table, name)
        found = await _partitions(session, name)
        data = [status.model_dump(mode="json", by_alias=True) for status in found]
        return Listing(_PARTITION_HEAD, [_partition_row(status) for status in found], data)

    await show(fetch, output, watch=watch)


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
            f"table {name}: its partitions are not created yet; run `{session.program} wait table/{name}`"
        )
    return found[partition]


async def hand_over(
    session: Session, what: str, partition: int, store: str, output: Output = Output.TABLE, *, release: bool
) -> None:
    """Hand over the leadership of a partition to a store; with `release`, let the plan choose the leader again."""
    name = _table_name(what)
    status = await _partition(session, name, partition)
    voting = [peer.store for peer in status.stable if peer.role == "Voter"]
    if not release and store not in voting:
        raise InvalidInputError(
            f"store: got {store!r}; allowed: a voter of partition {partition} of table {name} ({', '.join(voting)})"
        )

    def edit(document: dict[str, Any]) -> None:
        annotations = document["metadata"].setdefault("annotations", {})
        before = parse_leaders(annotations.get(LEADERS_ANNOTATION, ""))
        chosen = {p: leader for p, leader in before.items() if p != partition}
        annotations[LEADERS_ANNOTATION] = format_leaders(chosen if release else {**chosen, partition: store})

    await session.resources.change(Table, name, edit)
    words = "the plan chooses its leader again" if release else f"leadership is being handed over to {store}"
    data = {"table": name, "partition": partition, "leader": None if release else store}
    print_result(f"partition {partition} of table {name}: {words}", output, **data)


async def explain(session: LocalSession, what: str, partition: int, output: Output) -> None:
    """Explain the placement of a partition by its recent plans."""
    name = _table_name(what)
    table = await session.resources.need(Table, name)
    status = await _partition(session, name, partition)
    keys, key = session.keys(table.spec.store_cluster), await session.key_of(table)
    kvs = (await session.metastore.range(keys.plans(key))).kvs
    plans = explain_partition(kvs, partition, keys=keys, table=key)
    data = {
        "partition": status.model_dump(mode="json", by_alias=True),
        "plans": [{"plan": entry.plan, "stores": list(entry.stores), "moves": list(entry.moves)} for entry in plans],
    }
    rows = [(entry.plan, ",".join(entry.stores), "; ".join(entry.moves) or "no move") for entry in plans]
    reason = f"; {status.reason}" if status.reason else ""
    notes = [f"now: stage {status.stage}, leader {status.leader or 'none'}{reason}"]

    async def fetch() -> Listing:
        return Listing(("PLAN", "STORES", "WHY"), rows, data, notes)

    await show(fetch, output)


# Plans


async def plan(session: Session, what: str, assumptions: dict[str, Any], output: Output) -> None:
    """Preview the next plan: its moves, their reasons, sizes and duration."""
    name = _table_name(what)
    what_if = _what_if(name, assumptions)
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
        print_line(f"and {preview.totals.moves - len(rows)} more")
    print_line(_summary(name, preview, session.program))


def _what_if(name: str, assumptions: dict[str, Any]) -> WhatIf:
    """Validate the assumptions like those of a RebalancePlan."""
    given = {field: value for field, value in assumptions.items() if value is not None}
    spec = {"table": name, "dryRun": True, "whatIf": given}
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
        return f"plan {same} awaits approval: run `{program} approve plan/{name}-{same}`"
    if not totals.partitions and not totals.leader_moves:
        return "nothing would move"
    bytes_ = f", {size(totals.bytes)} to copy" if totals.bytes else ""
    seconds = f" in about {span(totals.seconds)}" if totals.seconds else ""
    counted = f"{totals.moves} moves in {totals.partitions} partitions, {totals.leader_moves} leader changes"
    if same is not None:
        return f"remaining of plan {same}: {counted}{bytes_}{seconds}"
    return f"plan {preview.number} would have {counted}{bytes_}{seconds}; nothing was changed"


async def approve(session: Session, what: str, output: Output = Output.TABLE, *, digest: str) -> None:
    """Approve a plan that awaits approval; with `digest`, only if that is its hash."""
    kind, name = split_name(what, default="plan")
    if kind is not RebalancePlan:
        raise InvalidInputError(f"plan: got {what!r}; allowed: a plan, such as plan/orders-7")
    found = await session.resources.need(RebalancePlan, name)
    if found.status is None or found.status.state != "AwaitingApproval":
        state = (found.status.state if found.status is not None else None) or "unknown"
        raise InvalidInputError(
            f"plan {name}: its state is {state}; only a plan in state AwaitingApproval can be approved"
        )
    if digest and digest != found.status.hash:
        raise InvalidInputError(f"--hash: got {digest}; allowed: {found.status.hash}, the hash of plan {name}")
    approved = found.status.hash

    def edit(document: dict[str, Any]) -> None:
        document["spec"]["approvedHash"] = approved

    await session.resources.change(RebalancePlan, name, edit)
    moves = found.status.totals.moves
    words = f"{display_name(RebalancePlan, name)} approved: {moves} moves, hash {approved}"
    print_result(words, output, plan=name, result="approved", moves=moves, hash=approved)


# Stores


async def cluster_of_store(session: Session, store: str) -> StoreCluster:
    """Return the StoreCluster of a store; raise InvalidInputError where there is no such store."""
    clusters = await session.resources.all_of(StoreCluster)
    for cluster in clusters:
        # Compare the full name: int() would accept main-00, which is not the name of a store.
        if store in {f"{cluster.metadata.name}-{number}" for number in range(cluster.spec.stores)}:
            return cluster
    existing = [_stores_of(cluster.metadata.name, cluster.spec.stores) for cluster in clusters]
    allowed = ", ".join(existing) or "none, because there is no StoreCluster"
    raise InvalidInputError(f"store: got {store!r}; allowed: {allowed}")


def _stores_of(cluster: str, count: int) -> str:
    return f"{cluster}-0" if count == 1 else f"{cluster}-0 to {cluster}-{count - 1}"


async def drain(session: Session, store: str, output: Output = Output.TABLE, *, undo: bool, wait: bool) -> None:
    """Drain a store; with `undo`, let it take replicas again."""
    name = (await cluster_of_store(session, store)).metadata.name

    def edit(document: dict[str, Any]) -> None:
        annotations = document["metadata"].setdefault("annotations", {})
        names = {one for one in annotations.get(DRAIN_ANNOTATION, "").split(",") if one}
        annotations[DRAIN_ANNOTATION] = ",".join(sorted(names - {store} if undo else names | {store}))

    await session.resources.change(StoreCluster, name, edit)
    words, result = ("undrained", "takes replicas again") if undo else ("draining", "is being emptied")
    if undo or not wait:
        print_result(f"store {store} {words}", output, store=store, result=result)
        return
    if output is Output.TABLE:
        print_line(f"store {store} {words}")
    await _until_empty(session, name, store, output)
    print_result(f"store {store} drained", output, store=store, result="is empty")


async def _until_empty(session: Session, cluster: str, store: str, output: Output) -> None:
    """Wait until a store is empty; print the reason whenever the drain is blocked."""
    printed = ""
    while True:
        status = (await session.resources.need(StoreCluster, cluster)).status
        found = next((one for one in status.drains if one.store == store), None) if status is not None else None
        if found is not None and found.percentage == 100:
            return
        if found is not None and found.reason != printed and output is Output.TABLE:
            printed = found.reason
            print_line(f"blocked: {printed}" if printed else "no longer blocked")
        await asyncio.sleep(_POLL_SECONDS)


async def table_location(session: Session, what: str) -> tuple[str, str]:
    """Return the names of a table and of its StoreCluster."""
    table = await session.resources.need(Table, _table_name(what))
    return table.metadata.name, table.spec.store_cluster

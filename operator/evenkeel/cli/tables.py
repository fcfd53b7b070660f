"""The verbs on tables, their partitions and plans, and on single stores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from evenkeel.cli.kinds import split_name, what_is
from evenkeel.cli.live import show
from evenkeel.cli.output import Output
from evenkeel.cli.printing import Listing, print_json, print_table, say, size, span, tell
from evenkeel.cli.session import Session
from evenkeel.driver import drive
from evenkeel.errors import InvalidInputError
from evenkeel.metastore.epoch import Epoch
from evenkeel.model.base import API_VERSION
from evenkeel.model.loading import parse
from evenkeel.model.partitionassignment import PartitionStatus
from evenkeel.model.rebalanceplan import PlanTotals, RebalancePlan, WhatIf
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.records import PlanState, StoreRecord, decode
from evenkeel.reconcile.explain import explain_partition
from evenkeel.reconcile.leaders import LEADERS_ANNOTATION, parse_leaders, spell_leaders
from evenkeel.reconcile.partitions import read_loads
from evenkeel.reconcile.plan_status import partition_bytes, plan_totals
from evenkeel.reconcile.planning import Preview, preview_table
from evenkeel.reconcile.stores import DRAIN_ANNOTATION
from evenkeel.reconcile.what_if import imagined_stores, imagined_table
from evenkeel.reconcile.wish import table_key, wish_of

__all__ = [
    "approve",
    "drain",
    "endpoints",
    "endpoints_of",
    "explain",
    "partitions",
    "plan",
    "store_of",
    "transfer_leader",
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
        raise InvalidInputError(f"table {name}: nothing is known of its partitions yet; `evenkeel wait table/{name}`")
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


async def explain(session: Session, what: str, partition: int, output: Output) -> None:
    """Why a partition is where it is: what the plans of late wanted of it."""
    name = _table_name(what)
    table = await session.resources.need(Table, name)
    status = await _partition(session, name, partition)
    keys, key = session.keys(table.spec.store_cluster), table_key(table)
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
    table = await session.resources.need(Table, name)
    cluster = await session.resources.get(StoreCluster, table.spec.store_cluster)
    imagined, keys, key = imagined_table(table, what_if), session.keys(table.spec.store_cluster), table_key(table)
    requests = preview_table(
        wish_of(imagined, await session.resources.assignments(name)),
        keys=keys,
        table=key,
        imagine=lambda stores: imagined_stores(stores, what_if, store_cluster=table.spec.store_cluster),
    )
    preview = await drive(requests, metastore=session.metastore, epoch=Epoch("", "preview", 0))
    sizes = partition_bytes(read_loads((await session.metastore.range(keys.load(""))).kvs, keys), key)
    totals = plan_totals(preview.plan, preview.moves, sizes, table=imagined, cluster=cluster)
    _print_plan(name, preview, totals, sizes, output)


def _what_if(name: str, imagine: dict[str, Any]) -> WhatIf:
    """What is to be imagined, checked as if it stood in a file."""
    wanted = {field: value for field, value in imagine.items() if value is not None}
    spec = {"table": name, "dryRun": True, "whatIf": wanted}
    document = {"apiVersion": API_VERSION, "kind": "RebalancePlan", "metadata": {"name": "preview"}, "spec": spec}
    found = parse(document, "what if")
    assert isinstance(found, RebalancePlan)
    return found.spec.what_if or WhatIf()


def _print_plan(name: str, preview: Preview, totals: PlanTotals, sizes: dict[int, int], output: Output) -> None:
    copied = [sizes.get(move.partition) if move.target is not None else 0 for move in preview.moves]
    if output is Output.JSON:
        same = preview.newest.n if preview.newest is not None else None
        moves = [
            {
                "partition": move.partition,
                "from": move.source,
                "to": move.target,
                "bytes": bytes_,
                "reason": move.reason,
            }
            for move, bytes_ in zip(preview.moves, copied, strict=True)
        ]
        head = {"number": preview.plan.n, "hash": preview.plan.head.hash, "sameAs": same}
        print_json({**head, "totals": totals.model_dump(mode="json", by_alias=True), "moves": moves})
        return
    rows = [
        (move.partition, move.source or "-", move.target or "-", "-" if bytes_ is None else size(bytes_), move.reason)
        for move, bytes_ in zip(preview.moves, copied, strict=True)
    ]
    if rows:
        print_table(("PARTITION", "FROM", "TO", "SIZE", "WHY"), rows)
    say(_summary(name, preview, totals))


def _summary(name: str, preview: Preview, totals: PlanTotals) -> str:
    newest = preview.newest
    if newest is not None and newest.state is PlanState.AWAITING_APPROVAL:
        return f"this is plan {newest.n}, which waits: `evenkeel approve plan/{name}-{newest.n}`"
    if not totals.partitions and not totals.leader_moves:
        return "nothing would move"
    bytes_ = f", {size(totals.bytes)} to copy" if totals.bytes else ""
    seconds = f", about {span(totals.seconds)} at the present throttles" if totals.seconds else ""
    counted = f"{totals.moves} moves of {totals.partitions} partitions, {totals.leader_moves} other leaders"
    if newest is not None:
        return f"left of plan {newest.n}: {counted}{bytes_}{seconds}"
    return f"plan {preview.plan.n} would be: {counted}{bytes_}{seconds}; nothing was changed"


async def approve(session: Session, what: str, output: Output = Output.TABLE, *, digest: str) -> None:
    """Let a plan begin that waits for it; with `digest` only if it is still that plan."""
    kind, name = split_name(what, default="plan")
    if kind is not RebalancePlan:
        raise InvalidInputError(f"plan: got {what!r}; allowed: a plan, as in plan/orders-7")
    found = await session.resources.need(RebalancePlan, name)
    if found.status is None or found.status.state != "AwaitingApproval":
        state = found.status.state if found.status is not None else "Computing"
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
        number = store.removeprefix(f"{cluster.metadata.name}-")
        if number != store and number.isdecimal() and int(number) < cluster.spec.stores:
            return cluster
    there = [f"{one.metadata.name}-0 to {one.metadata.name}-{one.spec.stores - 1}" for one in clusters]
    raise InvalidInputError(f"store: got {store!r}; allowed: {', '.join(there) or 'none, there is no StoreCluster'}")


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
    while not await _emptied(session, name, store):  # noqa: ASYNC110 - others empty it
        await asyncio.sleep(_POLL_SECONDS)
    tell(f"store {store} is empty", output, store=store, result="is empty")


async def _emptied(session: Session, cluster: str, store: str) -> bool:
    status = (await session.resources.need(StoreCluster, cluster)).status
    return status is not None and any(one.store == store and one.percentage == 100 for one in status.drains)


async def endpoints_of(session: Session, what: str) -> tuple[str, list[str]]:
    """A table's name, and where its stores answer clients."""
    table = await session.resources.need(Table, _table_name(what))
    return table.metadata.name, await endpoints(session, table.spec.store_cluster)


async def endpoints(session: Session, cluster: str) -> list[str]:
    """Where the stores of a StoreCluster answer clients."""
    keys = session.keys(cluster)
    found = await session.metastore.range(keys.stores())
    addresses = [decode(StoreRecord, kv.value, key=kv.key).flight for kv in found.kvs]
    known = [address for address in addresses if address]
    if not known:
        await session.resources.need(StoreCluster, cluster)
        raise InvalidInputError(f"StoreCluster {cluster}: no store of it answers clients; see `evenkeel local status`")
    return known

"""Determines a table's current plan, and writes a new one when necessary.

A plan stays current while its basis is the same: the spec, the users' choices, and the stores as the rebalancer sees
them. When the basis has changed, the rebalancer runs again, and a new plan is written if its targets differ. With
`approval: Manual` a plan waits until a user has approved its number and hash. A plan that changes nothing and a table's
first plan need no approval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from evenkeel.metastore.metastore_api import Compare, Put, Txn, TxnResult, unchanged
from evenkeel.model.views import Assignment, Move, StoresView
from evenkeel.planner import changes, moves
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import PlanCounts, PlanHead, PlanState, TableState, TargetPeer, encode, shape
from evenkeel.protocol.stored_plan import Plan, make_plan, write_plan
from evenkeel.rebalancers.rebalancer_api import RebalanceResult
from evenkeel.reconcile.desired_table import USERS_CHOOSE, DesiredTable
from evenkeel.reconcile.plan_moves import format_moves
from evenkeel.reconcile.reconcile_requests import Commit, Place, Requests
from evenkeel.reconcile.replica_caps import count_others
from evenkeel.reconcile.table_snapshot import TableSnapshot, read_table
from evenkeel.reconcile.table_validation import validate_desired

__all__ = ["Head", "Preview", "StaleSnapshotError", "commit", "current_plan", "preview_table"]

EXPLAINED = 10_000
"""How many moves with their reasons are stored with a plan."""


class StaleSnapshotError(Exception):
    """A transaction was refused because the snapshot is outdated; start over with a new one."""


class Head(msgspec.Struct, frozen=True):
    """The current plan, and the revision at which its head was written."""

    plan: Plan
    mod_revision: int
    moves: tuple[Move, ...] | None = None
    """Its first moves, if it was made just now."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The plan that a reconciliation would make; it is not written."""

    plan: Plan
    moves: tuple[Move, ...]
    """From the last requested assignment to the plan's targets; at most `EXPLAINED`."""
    newest: PlanHead | None
    """The newest written plan, if it has the same targets."""


class _Wanted(msgspec.Struct, frozen=True):
    """The rebalancer's result as the next plan."""

    plan: Plan
    moves: tuple[Move, ...]
    context: bytes | None


def commit(txn: Txn) -> Requests[TxnResult]:
    """Run a transaction; raise StaleSnapshotError if it is refused."""
    result: TxnResult = yield Commit(txn)
    if not result.succeeded:
        raise StaleSnapshotError
    return result


def current_plan(snapshot: TableSnapshot, desired: DesiredTable, epoch: Compare) -> Requests[Head]:
    """Return the current plan; write it first if it is new."""
    newest = snapshot.plan
    if newest is not None and newest.head.basis == snapshot.basis(desired.basis()):
        return (yield from _approve(snapshot, newest, desired, epoch))
    wanted = yield from _ask(snapshot, desired, snapshot.stores)
    if newest is None or not _same_targets(newest, wanted.plan, leading=_leading(snapshot, desired)):
        revision = yield from _write(snapshot, wanted.plan, wanted.context, epoch)
        return Head(wanted.plan, revision, wanted.moves)
    head = msgspec.structs.replace(
        newest.head,
        inputs=wanted.plan.head.inputs,
        basis=wanted.plan.head.basis,
        state=_state(newest, desired),
    )
    same = Plan(head, newest.slices)
    return Head(same, (yield from _write(snapshot, same, wanted.context, epoch)))


def _approve(snapshot: TableSnapshot, newest: Plan, desired: DesiredTable, epoch: Compare) -> Requests[Head]:
    """Return the newest plan; activate it if it was approved, unless its head has changed."""
    assert snapshot.head_kv is not None
    state = _state(newest, desired)
    if state is newest.head.state:
        return Head(newest, snapshot.head_kv.mod_revision)
    head = msgspec.structs.replace(newest.head, state=state)
    key = snapshot.head_kv.key
    result = yield from commit(Txn((epoch, unchanged(key, snapshot.head_kv)), (Put(key, encode(head)),)))
    return Head(Plan(head, newest.slices), result.revision)


def _state(newest: Plan, desired: DesiredTable) -> PlanState:
    waited = newest.head.state is PlanState.AWAITING_APPROVAL
    return PlanState.ACTIVE if waited and desired.approves(newest.n, newest.head.hash) else newest.head.state


def _leading(snapshot: TableSnapshot, desired: DesiredTable) -> Mapping[int, str]:
    """Return the current leaders that do not justify a new plan; none in modes in which users choose leaders."""
    return {} if desired.mode in USERS_CHOOSE else snapshot.current(desired.record.partitions).leaders


def _same_targets(one: Plan, other: Plan, *, leading: Mapping[int, str]) -> bool:
    """Whether two plans have the same replicas and leaders.

    A rebalancer that prefers a partition's current leader is no reason for a new plan: leaders change, and leader
    orders restore them.
    """
    partitions = sum(len(piece.rows) for piece in other.slices)
    return all(_same_target(one.target(p), other.target(p), leading.get(p)) for p in range(partitions))


def _same_target(one: tuple[TargetPeer, ...], other: tuple[TargetPeer, ...], leading: str | None) -> bool:
    return shape(one) == shape(other) and other[0].store in (one[0].store, leading)


def _ask(snapshot: TableSnapshot, desired: DesiredTable, stores: StoresView) -> Requests[_Wanted]:
    """Return what plan n+1 would be on these stores, its moves, and the rebalancer's state."""
    stores = yield from count_others(stores, keys=snapshot.keys, table=snapshot.table)
    partitions = desired.record.partitions
    before, current = snapshot.previous(partitions), snapshot.current(partitions)
    placed: RebalanceResult = yield Place(
        table=desired.view,
        mode=desired.mode,
        class_name=desired.class_name,
        previous=before,
        stores=stores,
        current=current,
        choices=desired.choices,
        context=snapshot.context,
    )
    after = placed.assignment
    made = tuple(moves(before, after, table=desired.view, stores=stores, limit=EXPLAINED))
    totals = changes(before, after, current)
    waits = desired.manual and not _first(snapshot) and (totals.partitions > 0 or not _same_leaders(before, after))
    plan = make_plan(
        [after.stores_of(partition) for partition in range(partitions)],
        n=snapshot.next_plan,
        inputs=snapshot.revision,
        voters=after.voters,
        volumes={store.name: store.volume for store in stores.stores},
        basis=snapshot.basis(desired.basis()),
        reasons=format_moves(made),
        state=PlanState.AWAITING_APPROVAL if waits else PlanState.ACTIVE,
        counts=PlanCounts(partitions=totals.partitions, moves=totals.pairs, leaders=totals.transfers),
    )
    return _Wanted(plan, made, placed.context)


def _first(snapshot: TableSnapshot) -> bool:
    return snapshot.record is None or snapshot.record.state is TableState.CREATING


def _same_leaders(before: Assignment, after: Assignment) -> bool:
    return all(before.leader_of(p) == after.leader_of(p) for p in range(after.partitions))


def _write(snapshot: TableSnapshot, plan: Plan, context: bytes | None, epoch: Compare) -> Requests[int]:
    """Write the plan and, with its head, the rebalancer's state."""
    guards = (epoch, unchanged(snapshot.keys.table(snapshot.table), snapshot.record_kv))
    head_mod = 0 if snapshot.head_kv is None else snapshot.head_kv.mod_revision
    revision = 0
    remember = () if context is None else (Put(snapshot.keys.rebalancer_context(snapshot.table), context),)
    txns = write_plan(plan, keys=snapshot.keys, table=snapshot.table, head_mod=head_mod, guards=guards, beside=remember)
    for txn in txns:
        revision = (yield from commit(txn)).revision
    return revision


def preview_table(
    desired: DesiredTable,
    *,
    keys: Keys,
    table: str,
    imagine: Callable[[StoresView], StoresView] = lambda stores: stores,
) -> Requests[Preview]:
    """Return what a reconciliation would plan now, with the stores as changed by `imagine`; write nothing."""
    snapshot = TableSnapshot(keys, table, (yield read_table(keys, table)))
    validate_desired(snapshot, desired)
    wanted = yield from _ask(snapshot, desired, imagine(snapshot.stores))
    newest = snapshot.plan
    same = newest is not None and _same_targets(newest, wanted.plan, leading=_leading(snapshot, desired))
    return Preview(plan=wanted.plan, moves=wanted.moves, newest=newest.head if newest is not None and same else None)

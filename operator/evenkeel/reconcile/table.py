"""A table brought to what its user wants: created, planned, rebalanced, or dropped.

    mirror     the spec goes to `tables/<t>`, because every input of a plan is a key
    create     announce, write a plan, write the stable keys, say ready
    plan       ask the rebalancer; where its answer differs from the newest plan's targets, write plan n+1
    carry out  one transaction per 64 partitions writes pending or planned; those not yet handled, whoever began
    drop       say dropping, remove all keys at once, wait for the stores, remove the tombstone

Every step rests on one snapshot and is refused if that has changed; then the reconciliation starts over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from evenkeel.errors import InvalidInputError
from evenkeel.metastore.api import Compare, Put, Txn, TxnResult, unchanged
from evenkeel.model.views import Choice, Move, TableView
from evenkeel.planner import moves
from evenkeel.protocol import table_life
from evenkeel.protocol.batch import PlanRun
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.partition import Case
from evenkeel.protocol.plan import Plan, make_plan, write_plan
from evenkeel.protocol.records import PlanState, TableRecord, TableState, encode, shape
from evenkeel.rebalancers.api import RebalanceResult
from evenkeel.reconcile.admission import admit
from evenkeel.reconcile.requests import Carry, Commit, Found, Place, Requests
from evenkeel.reconcile.snapshot import TableSnapshot, read_table

__all__ = ["Outcome", "Preview", "TableWish", "drop_table", "preview_table", "reconcile_table"]

EXPLAINED = 10_000
"""Moves of one plan whose reasons are kept with it."""


class TableWish(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants of a table, and how it is to be placed."""

    record: TableRecord
    view: TableView
    mode: str = "FullAuto"
    class_name: str | None = None
    max_concurrent: int | None = None
    """Most partitions whose peers change at the same time; None is unlimited."""
    choices: dict[int, Choice] = {}
    """The users' PartitionAssignments, for SemiAuto and Customized."""
    manual: bool = False
    """Whether a plan waits for its approval (`approval: Manual`); a table's first does not."""

    def basis(self) -> bytes:
        """All of the wish that a plan rests on."""
        record = msgspec.structs.replace(self.record, state=TableState.READY)
        return encode((record, self.mode, self.class_name, sorted(self.choices.items())))


class Outcome(msgspec.Struct, kw_only=True):
    """What a reconciliation came to."""

    plan: int = 0
    moves: tuple[Move, ...] | None = None
    """The first moves of the plan with their reasons, where this run made it."""
    cases: Counter[Case] = msgspec.field(default_factory=Counter)
    withheld: int = 0
    """Partitions that wait until others have arrived; reconcile again when some have."""
    blocked: dict[int, str] = {}
    """Partitions that no order of moves gets to their target, and why."""
    superseded: bool = False
    awaiting_approval: bool = False
    plan_problem: str = ""
    """Why the plan before this one could not be read and was replaced."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was not written."""

    number: int
    hash: str
    moves: tuple[Move, ...]


class _ChangedMeanwhileError(Exception):
    """What was read no longer holds; begin again with a new snapshot."""


def reconcile_table(
    wish: TableWish,
    *,
    keys: Keys,
    table: str,
    epoch: Compare,
) -> Requests[Outcome]:
    """Go as far as is possible now; call again on every change of what it rests on."""
    while True:
        found = yield read_table(keys, table)
        snapshot = TableSnapshot(keys, table, found)
        _refuse(snapshot, wish)
        try:
            if snapshot.record_kv is None:
                yield from _commit(table_life.announce(wish.record, keys=keys, table=table, epoch=epoch))
            elif _spec_differs(snapshot, wish.record):
                yield from _mirror(snapshot, wish.record, epoch)
            elif snapshot.record is not None and snapshot.record.state is TableState.READY:
                head = yield from _plan(snapshot, wish, epoch)
                return (yield from _carry_out(snapshot, head, wish, epoch))
            else:
                head = yield from _plan(snapshot, wish, epoch)
                yield from _create(snapshot, head.plan, epoch)
        except _ChangedMeanwhileError:
            continue


def _refuse(snapshot: TableSnapshot, wish: TableWish) -> None:
    """What cannot be had is said before anything is written."""
    if snapshot.tombstone_kv is not None or (snapshot.record and snapshot.record.state is TableState.DROPPING):
        raise InvalidInputError(
            f"table {snapshot.table} is being dropped; wait until that is done, then create it anew under another uid"
        )
    if snapshot.record is not None and snapshot.record.partitions != wish.record.partitions:
        raise InvalidInputError(
            f"table {snapshot.table}: partitions: got {wish.record.partitions}; allowed: {snapshot.record.partitions}, "
            "which cannot change after creation"
        )


def _spec_differs(snapshot: TableSnapshot, wanted: TableRecord) -> bool:
    assert snapshot.record is not None
    state = snapshot.record.state
    return msgspec.json.encode(msgspec.structs.replace(wanted, state=state)) != msgspec.json.encode(snapshot.record)


def _mirror(snapshot: TableSnapshot, wanted: TableRecord, epoch: Compare) -> Requests[None]:
    assert snapshot.record_kv is not None
    assert snapshot.record is not None
    value = msgspec.json.encode(msgspec.structs.replace(wanted, state=snapshot.record.state))
    key = snapshot.record_kv.key
    yield from _commit(Txn((epoch, unchanged(key, snapshot.record_kv)), (Put(key, value),)))


class _Head(msgspec.Struct, frozen=True):
    """The plan that counts, and the revision its head was written at."""

    plan: Plan
    mod_revision: int
    moves: tuple[Move, ...] | None = None


def _plan(snapshot: TableSnapshot, wish: TableWish, epoch: Compare) -> Requests[_Head]:
    """The newest plan while what it rests on is the same, or the rebalancer wants the same; else plan n+1, written."""
    newest = snapshot.plan
    if newest is not None and snapshot.head_kv is not None and newest.head.basis == snapshot.basis(wish.basis()):
        return _Head(newest, snapshot.head_kv.mod_revision)
    wanted, made, context = yield from _next_plan(snapshot, wish)
    if newest is not None and _same_targets(newest, wanted, wish.record.partitions):
        head = msgspec.structs.replace(newest.head, inputs=wanted.head.inputs, basis=wanted.head.basis)
        wanted, made = Plan(head, newest.slices), None
    revision = yield from _write(snapshot, wanted, context, epoch)
    return _Head(wanted, revision, made)


def _next_plan(
    snapshot: TableSnapshot, wish: TableWish
) -> Requests[tuple[Plan, tuple[Move, ...] | None, bytes | None]]:
    """What plan n+1 would be, its moves, and what the rebalancer wants to remember."""
    partitions = wish.record.partitions
    before = snapshot.previous(partitions)
    placed: RebalanceResult = yield Place(
        table=wish.view,
        mode=wish.mode,
        class_name=wish.class_name,
        previous=before,
        stores=snapshot.stores,
        current=snapshot.current(partitions),
        choices=wish.choices,
        context=snapshot.context,
    )
    after = placed.assignment
    made = tuple(moves(before, after, table=wish.view, stores=snapshot.stores, limit=EXPLAINED))
    plan = make_plan(
        [after.stores_of(partition) for partition in range(partitions)],
        n=snapshot.next_plan,
        inputs=snapshot.revision,
        voters=after.voters,
        volumes={store.name: store.volume for store in snapshot.stores.stores},
        basis=snapshot.basis(wish.basis()),
        reasons=_reasons(made),
        state=PlanState.AWAITING_APPROVAL if wish.manual and snapshot.plan is not None else PlanState.ACTIVE,
    )
    return plan, made, placed.context


def preview_table(wish: TableWish, *, keys: Keys, table: str) -> Requests[Preview]:
    """What a reconciliation would plan now; changes nothing."""
    found = yield read_table(keys, table)
    snapshot = TableSnapshot(keys, table, found)
    _refuse(snapshot, wish)
    plan, made, _ = yield from _next_plan(snapshot, wish)
    same = snapshot.plan is not None and _same_targets(snapshot.plan, plan, wish.record.partitions)
    return Preview(number=plan.n, hash=plan.head.hash, moves=() if same else made or ())


def _reasons(made: Iterable[Move]) -> dict[int, list[str]]:
    reasons: dict[int, list[str]] = {}
    for move in made:
        reasons.setdefault(move.partition, []).append(
            f"{move.source or 'none'} -> {move.target or 'none'}: {move.reason}"
        )
    return reasons


def _same_targets(one: Plan, other: Plan, partitions: int) -> bool:
    """Leaders aside: a leader that moved is no reason for a plan, and orders move leaders without one."""
    return all(shape(one.target(partition)) == shape(other.target(partition)) for partition in range(partitions))


def _write(snapshot: TableSnapshot, plan: Plan, context: bytes | None, epoch: Compare) -> Requests[int]:
    """Store the plan and, with its head, what the rebalancer that made it remembers."""
    guards = (epoch, unchanged(snapshot.keys.table(snapshot.table), snapshot.record_kv))
    head_mod = 0 if snapshot.head_kv is None else snapshot.head_kv.mod_revision
    revision = 0
    remember = () if context is None else (Put(snapshot.keys.rebalancer_context(snapshot.table), context),)
    txns = write_plan(plan, keys=snapshot.keys, table=snapshot.table, head_mod=head_mod, guards=guards, beside=remember)
    for txn in txns:
        revision = (yield from _commit(txn)).revision
    return revision


def _create(snapshot: TableSnapshot, plan: Plan, epoch: Compare) -> Requests[None]:
    assert snapshot.record_kv is not None
    assert snapshot.record is not None
    keys, table, record = snapshot.keys, snapshot.table, snapshot.record_kv
    missing = [p for p in range(snapshot.record.partitions) if snapshot.partition(p).stable is None]
    for txn in table_life.genesis(plan, missing, keys=keys, table=table, record=record, epoch=epoch):
        yield from _commit(txn)
    yield from _commit(table_life.make_ready(record, keys=keys, table=table, epoch=epoch))


def _carry_out(snapshot: TableSnapshot, head: _Head, wish: TableWish, epoch: Compare) -> Requests[Outcome]:
    assert snapshot.record is not None
    if head.plan.head.state is PlanState.AWAITING_APPROVAL:
        return Outcome(plan=head.plan.n, moves=head.moves, awaiting_approval=True)
    run = PlanRun(
        keys=snapshot.keys,
        table=snapshot.table,
        plan=head.plan.n,
        target=head.plan.target,
        mode=snapshot.record.retarget,
        epoch=epoch,
        head_mod=head.mod_revision,
        gone=snapshot.gone,
    )
    admission = admit(snapshot, head.plan, table=wish.view, max_concurrent=wish.max_concurrent)
    run.admit({p: snapshot.partition(p) for p in admission.partitions}, revision=snapshot.revision)
    yield Carry(run)
    return Outcome(
        plan=head.plan.n,
        moves=head.moves,
        plan_problem=snapshot.plan_problem,
        cases=run.cases,
        withheld=admission.withheld,
        blocked=admission.blocked,
        superseded=run.superseded,
    )


def drop_table(*, keys: Keys, table: str, epoch: Compare) -> Requests[bool]:
    """Drop the table as far as is possible now; True when nothing of it is left."""
    while True:
        found: Found = yield read_table(keys, table)
        snapshot = TableSnapshot(keys, table, found)
        try:
            if snapshot.record_kv is None:
                return (yield from _bury(snapshot, epoch))
            yield from _drop(snapshot, epoch)
        except _ChangedMeanwhileError:
            continue


def _drop(snapshot: TableSnapshot, epoch: Compare) -> Requests[None]:
    assert snapshot.record is not None
    assert snapshot.record_kv is not None
    keys, table, record = snapshot.keys, snapshot.table, snapshot.record_kv
    if snapshot.record.state is not TableState.DROPPING:
        yield from _commit(table_life.mark_dropping(record, keys=keys, table=table, epoch=epoch))
        return
    volumes = [(store.name, store.volume) for store in snapshot.stores.stores]
    yield from _commit(table_life.drop(record, volumes, keys=keys, table=table, epoch=epoch))


def _bury(snapshot: TableSnapshot, epoch: Compare) -> Requests[bool]:
    if snapshot.tombstone_kv is None:
        return True
    registered = snapshot.registered

    def gone(store: str, volume: str) -> bool:
        """A store that does not answer may come back with its data; one with another volume cannot."""
        return store in registered and registered[store].volume != volume

    txn = table_life.bury(snapshot.tombstone_kv, gone=gone, epoch=epoch)
    if txn is None:
        return False
    yield from _commit(txn)
    return True


def _commit(txn: Txn) -> Requests[TxnResult]:
    result: TxnResult = yield Commit(txn)
    if not result.succeeded:
        raise _ChangedMeanwhileError
    return result

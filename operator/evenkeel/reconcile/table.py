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
from collections.abc import Callable

import msgspec

from evenkeel.metastore.api import Compare, Put, Txn, unchanged
from evenkeel.model.views import Move, TableView
from evenkeel.protocol import table_life
from evenkeel.protocol.batch import PlanRun
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.partition import Case
from evenkeel.protocol.plan import Plan
from evenkeel.protocol.records import PlanState, TableRecord, TableState
from evenkeel.reconcile.admission import admit
from evenkeel.reconcile.planning import ChangedMeanwhileError, Head, commit, current_plan
from evenkeel.reconcile.refusal import refuse
from evenkeel.reconcile.requests import Carry, Found, Requests
from evenkeel.reconcile.snapshot import TableSnapshot, read_table
from evenkeel.reconcile.wish import TableWish

__all__ = ["Outcome", "carry_on", "drop_table", "reconcile_table"]


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
        refuse(snapshot, wish)
        try:
            if snapshot.record_kv is None:
                yield from commit(table_life.announce(wish.record, keys=keys, table=table, epoch=epoch))
            elif _spec_differs(snapshot, wish.record):
                yield from _mirror(snapshot, wish.record, epoch)
            elif snapshot.record is not None and snapshot.record.state is TableState.READY:
                head = yield from current_plan(snapshot, wish, epoch)
                return (yield from _carry_out(snapshot, head, wish.view, wish.max_concurrent, epoch))
            else:
                head = yield from current_plan(snapshot, wish, epoch)
                yield from _create(snapshot, head.plan, epoch)
        except ChangedMeanwhileError:
            continue


def carry_on(wish: TableWish, *, keys: Keys, table: str, epoch: Compare) -> Requests[Outcome]:
    """Go on with the newest plan where no other can be had: what was decided last stays in force."""
    snapshot = TableSnapshot(keys, table, (yield read_table(keys, table)))
    plan = snapshot.plan
    if plan is None or snapshot.head_kv is None or snapshot.record is None:
        return Outcome()
    if snapshot.record.state is not TableState.READY:
        return Outcome(plan=plan.n)
    head = Head(plan, snapshot.head_kv.mod_revision)
    view = msgspec.structs.replace(
        wish.view,
        partitions=snapshot.record.partitions,
        replicas=len(plan.target(0)),
        consensus_size=plan.slices[0].voters,
    )
    return (yield from _carry_out(snapshot, head, view, wish.max_concurrent, epoch))


def _spec_differs(snapshot: TableSnapshot, wanted: TableRecord) -> bool:
    assert snapshot.record is not None
    state = snapshot.record.state
    return msgspec.json.encode(msgspec.structs.replace(wanted, state=state)) != msgspec.json.encode(snapshot.record)


def _mirror(snapshot: TableSnapshot, wanted: TableRecord, epoch: Compare) -> Requests[None]:
    assert snapshot.record_kv is not None
    assert snapshot.record is not None
    value = msgspec.json.encode(msgspec.structs.replace(wanted, state=snapshot.record.state))
    key = snapshot.record_kv.key
    yield from commit(Txn((epoch, unchanged(key, snapshot.record_kv)), (Put(key, value),)))


def _create(snapshot: TableSnapshot, plan: Plan, epoch: Compare) -> Requests[None]:
    assert snapshot.record_kv is not None
    assert snapshot.record is not None
    keys, table, record = snapshot.keys, snapshot.table, snapshot.record_kv
    missing = [p for p in range(snapshot.record.partitions) if snapshot.partition(p).stable is None]
    for txn in table_life.genesis(plan, missing, keys=keys, table=table, record=record, epoch=epoch):
        yield from commit(txn)
    yield from commit(table_life.make_ready(record, keys=keys, table=table, epoch=epoch))


def _carry_out(
    snapshot: TableSnapshot, head: Head, view: TableView, max_concurrent: int | None, epoch: Compare
) -> Requests[Outcome]:
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
    admission = admit(snapshot, head.plan, table=view, max_concurrent=max_concurrent)
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


def drop_table(
    *,
    keys: Keys,
    table: str,
    epoch: Compare,
    retired: Callable[[str], bool] = lambda _: False,
    forced: bool = False,
) -> Requests[bool]:
    """Drop the table as far as is possible now; True when nothing of it is left.

    `retired` tells stores that were taken away on purpose, with their volumes: nobody waits for their word. `forced`
    waits for nobody's.
    """
    while True:
        found: Found = yield read_table(keys, table)
        snapshot = TableSnapshot(keys, table, found)
        try:
            if snapshot.record_kv is None:
                return (yield from _bury(snapshot, epoch, retired, forced=forced))
            yield from _drop(snapshot, epoch)
        except ChangedMeanwhileError:
            continue


def _drop(snapshot: TableSnapshot, epoch: Compare) -> Requests[None]:
    assert snapshot.record is not None
    assert snapshot.record_kv is not None
    keys, table, record = snapshot.keys, snapshot.table, snapshot.record_kv
    if snapshot.record.state is not TableState.DROPPING:
        yield from commit(table_life.mark_dropping(record, keys=keys, table=table, epoch=epoch))
        return
    volumes = [(store.name, store.volume) for store in snapshot.stores.stores]
    yield from commit(table_life.drop(record, volumes, keys=keys, table=table, epoch=epoch))


def _bury(snapshot: TableSnapshot, epoch: Compare, retired: Callable[[str], bool], *, forced: bool) -> Requests[bool]:
    if snapshot.tombstone_kv is None:
        return True
    registered = snapshot.registered

    def gone(store: str, volume: str) -> bool:
        """A store that does not answer may come back with its data; one with another volume cannot."""
        if store in registered:
            return forced or registered[store].volume != volume
        return forced or retired(store)

    txn = table_life.bury(snapshot.tombstone_kv, gone=gone, epoch=epoch)
    if txn is None:
        return False
    yield from commit(txn)
    return True

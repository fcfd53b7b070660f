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
from typing import Final

import msgspec

from evenkeel.errors import MetastoreLossError
from evenkeel.metastore.metastore_api import Compare, Put, Txn, unchanged
from evenkeel.model.views import Move, TableView
from evenkeel.protocol import table_lifecycle
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.operator_decision import Case
from evenkeel.protocol.plan_run import PlanRun
from evenkeel.protocol.records import PlanState, TableRecord, TableState
from evenkeel.protocol.stored_plan import Plan
from evenkeel.reconcile.desired_table import DesiredTable
from evenkeel.reconcile.plan_admission import admit, arrived
from evenkeel.reconcile.planning import ChangedMeanwhileError, Head, commit, current_plan
from evenkeel.reconcile.reconcile_requests import Carry, Found, Requests
from evenkeel.reconcile.replica_caps import count_others
from evenkeel.reconcile.table_snapshot import TableSnapshot, read_table
from evenkeel.reconcile.table_validation import refuse

__all__ = ["Outcome", "adopt_table", "carry_on", "drop_table", "reconcile_table", "to_be_adopted"]

UNKNOWN_PLANS: Final = 1000
"""More plans than can be made before a status tells of one."""


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
    desired: DesiredTable,
    *,
    keys: Keys,
    table: str,
    epoch: Compare,
    adopting: str = "",
) -> Requests[Outcome]:
    """Go as far as is possible now; call again on every change of what it rests on.

    `adopting` is a request to adopt the metastore that is being carried out.
    """
    while True:
        found = yield read_table(keys, table)
        snapshot = TableSnapshot(keys, table, found)
        refuse(snapshot, desired)
        try:
            if adopting and to_be_adopted(snapshot, desired.newest_plan, adopting):
                yield from _adopt(snapshot, desired, adopting, epoch)
            elif snapshot.record_kv is None:
                _refuse_second_creation(snapshot, desired)
                yield from commit(table_lifecycle.announce(desired.record, keys=keys, table=table, epoch=epoch))
            elif _spec_differs(snapshot, desired.record):
                yield from _mirror(snapshot, desired.record, epoch)
            elif snapshot.record is not None and snapshot.record.state is TableState.READY:
                _wait_for_stores(snapshot)
                head = yield from current_plan(snapshot, desired, epoch)
                return (yield from _carry_out(snapshot, head, desired.view, desired.max_concurrent, epoch))
            else:
                head = yield from current_plan(snapshot, desired, epoch)
                yield from _create(snapshot, head.plan, epoch)
        except ChangedMeanwhileError:
            continue


def to_be_adopted(snapshot: TableSnapshot, newest_plan: int, request: str) -> bool:
    """Whether a table has yet to be taken over: one that the metastore or the user's resources say was there."""
    if snapshot.tombstone_kv is not None:
        return False
    return newest_plan > 0 if snapshot.record is None else snapshot.record.adopted != request


def adopt_table(desired: DesiredTable, *, keys: Keys, table: str, epoch: Compare, request: str) -> Requests[None]:
    """Take over a table that is about to go, so that stores can say what they have of it."""
    while True:
        snapshot = TableSnapshot(keys, table, (yield read_table(keys, table)))
        if not to_be_adopted(snapshot, desired.newest_plan, request):
            return
        try:
            yield from _adopt(snapshot, desired, request, epoch)
        except ChangedMeanwhileError:
            continue


def _adopt(snapshot: TableSnapshot, desired: DesiredTable, request: str, epoch: Compare) -> Requests[None]:
    # The last plans before the loss may be in no status, and their numbers were given to replicas.
    floor = max(desired.newest_plan, snapshot.next_plan - 1) + UNKNOWN_PLANS
    keys, table, before = snapshot.keys, snapshot.table, snapshot.record_kv
    record = desired.record if snapshot.record is None else _mirrored(snapshot.record, desired.record)
    record = msgspec.structs.replace(record, dropped=None, restored="" if desired.owner == table else desired.owner)
    yield from commit(
        table_lifecycle.adopt(record, before, request=request, plan_floor=floor, keys=keys, table=table, epoch=epoch)
    )


def _refuse_second_creation(snapshot: TableSnapshot, desired: DesiredTable) -> None:
    """A table whose data is on the stores is never created anew."""
    if desired.newest_plan:
        raise MetastoreLossError(
            f"etcd has no record of table {snapshot.table}, whose status names plan {desired.newest_plan}; its data "
            "stays on the stores: correct etcd, or set spec.adoptMetastore of the StoreCluster to the id of this one"
        )


def _wait_for_stores(snapshot: TableSnapshot) -> None:
    """Plan nothing before the stores have said what they hold."""
    assert snapshot.record is not None
    missing = [p for p in range(snapshot.record.partitions) if snapshot.partition(p).stable is None]
    if missing:
        raise MetastoreLossError(
            f"{len(missing)} partitions of table {snapshot.table}, such as {missing[0]}, have not said which replicas "
            "they have since etcd was adopted: most of their replicas have to be there"
        )


def carry_on(desired: DesiredTable, *, keys: Keys, table: str, epoch: Compare) -> Requests[Outcome]:
    """Go on with the newest plan where no other can be had: what was decided last stays in force."""
    snapshot = TableSnapshot(keys, table, (yield read_table(keys, table)))
    plan = snapshot.plan
    if plan is None or snapshot.head_kv is None or snapshot.record is None:
        return Outcome()
    if snapshot.record.state is not TableState.READY:
        return Outcome(plan=plan.n)
    head = Head(plan, snapshot.head_kv.mod_revision)
    view = msgspec.structs.replace(
        desired.view,
        partitions=snapshot.record.partitions,
        replicas=len(plan.target(0)),
        consensus_size=plan.slices[0].voters,
    )
    return (yield from _carry_out(snapshot, head, view, desired.max_concurrent, epoch))


def _spec_differs(snapshot: TableSnapshot, wanted: TableRecord) -> bool:
    assert snapshot.record is not None
    return msgspec.json.encode(_mirrored(snapshot.record, wanted)) != msgspec.json.encode(snapshot.record)


def _mirrored(before: TableRecord, wanted: TableRecord) -> TableRecord:
    """The record with another spec; where the table is in its life is not the spec's business."""
    return msgspec.structs.replace(
        wanted,
        state=before.state,
        dropped=before.dropped,
        restored=before.restored,
        adopted=before.adopted,
        plan_floor=before.plan_floor,
    )


def _mirror(snapshot: TableSnapshot, wanted: TableRecord, epoch: Compare) -> Requests[None]:
    assert snapshot.record_kv is not None
    assert snapshot.record is not None
    value = msgspec.json.encode(_mirrored(snapshot.record, wanted))
    key = snapshot.record_kv.key
    yield from commit(Txn((epoch, unchanged(key, snapshot.record_kv)), (Put(key, value),)))


def _create(snapshot: TableSnapshot, plan: Plan, epoch: Compare) -> Requests[None]:
    assert snapshot.record_kv is not None
    assert snapshot.record is not None
    keys, table, record = snapshot.keys, snapshot.table, snapshot.record_kv
    missing = [p for p in range(snapshot.record.partitions) if snapshot.partition(p).stable is None]
    for txn in table_lifecycle.genesis(plan, missing, keys=keys, table=table, record=record, epoch=epoch):
        yield from commit(txn)
    yield from commit(table_lifecycle.make_ready(record, keys=keys, table=table, epoch=epoch))


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
    stores = snapshot.stores
    if not all(arrived(snapshot, head.plan, partitions=view.partitions)):
        stores = yield from count_others(stores, keys=snapshot.keys, table=snapshot.table)
    admission = admit(snapshot, head.plan, table=view, stores=stores, max_concurrent=max_concurrent)
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
    only_kept: bool = False,
    await_publication: bool = True,
) -> Requests[bool]:
    """Drop the table as far as is possible now; True when nothing of it is left.

    `retired` tells stores that were taken away on purpose, with their volumes: nobody waits for their word. `forced`
    waits for nobody's. `only_kept` drops nothing but a table whose data is kept: a user may restore it at any moment.
    `await_publication` is False where all stores are there: what they have of an adopted table need not be known then.
    """
    while True:
        found: Found = yield read_table(keys, table)
        snapshot = TableSnapshot(keys, table, found)
        try:
            if not forced and await_publication and _unseeded(snapshot):
                return False
            if snapshot.record_kv is None:
                return (yield from _bury(snapshot, epoch, retired, forced=forced))
            if only_kept and (snapshot.record is None or snapshot.record.dropped is None):
                return False
            yield from _drop(snapshot, epoch)
        except ChangedMeanwhileError:
            continue


def _unseeded(snapshot: TableSnapshot) -> bool:
    """Whether the metastore was adopted, and stores that have to delete something have yet to say so."""
    record = snapshot.record
    if record is None or record.state is not TableState.READY or not record.adopted:
        return False
    return any(snapshot.partition(p).stable is None for p in range(record.partitions))


def _drop(snapshot: TableSnapshot, epoch: Compare) -> Requests[None]:
    assert snapshot.record is not None
    assert snapshot.record_kv is not None
    keys, table, record = snapshot.keys, snapshot.table, snapshot.record_kv
    if snapshot.record.state is not TableState.DROPPING:
        yield from commit(table_lifecycle.mark_dropping(record, keys=keys, table=table, epoch=epoch))
        return
    volumes = [(store.name, store.volume) for store in snapshot.stores.stores]
    yield from commit(table_lifecycle.drop(record, volumes, keys=keys, table=table, epoch=epoch))


def _bury(snapshot: TableSnapshot, epoch: Compare, retired: Callable[[str], bool], *, forced: bool) -> Requests[bool]:
    if snapshot.tombstone_kv is None:
        return True
    registered = snapshot.registered

    def gone(store: str, volume: str) -> bool:
        """A store that does not answer may come back with its data; one with another volume cannot."""
        if store in registered:
            return forced or registered[store].volume != volume
        return forced or retired(store)

    txn = table_lifecycle.bury(snapshot.tombstone_kv, gone=gone, epoch=epoch)
    if txn is None:
        return False
    yield from commit(txn)
    return True

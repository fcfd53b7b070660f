"""Reconciles a table with its desired state: creates, plans, rebalances or drops it.

`STEPS` lists what one pass does, in order. All steps of a pass use one snapshot of the metastore. A step that writes a
key which later steps depend on ends the pass, and the next pass reads again. A transaction is refused if what it
depends on has changed; then the pass starts over too.

Dropping (`drop_table`): mark the record as dropping, remove all keys at once, wait for the stores to delete their data,
remove the tombstone.
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
from evenkeel.reconcile.desired_table import DesiredTable
from evenkeel.reconcile.plan_admission import admit, arrived
from evenkeel.reconcile.planning import Head, StaleSnapshotError, commit, current_plan
from evenkeel.reconcile.reconcile_requests import Carry, Found, Requests
from evenkeel.reconcile.replica_caps import count_others
from evenkeel.reconcile.table_snapshot import TableSnapshot, read_table
from evenkeel.reconcile.table_validation import validate_desired

__all__ = ["STEPS", "Outcome", "adopt_table", "continue_plan", "drop_table", "reconcile_table", "to_be_adopted"]

UNKNOWN_PLANS: Final = 1000
"""More plans than can be made before a status names one."""


class Outcome(msgspec.Struct, kw_only=True):
    """The result of a reconciliation."""

    plan: int = 0
    moves: tuple[Move, ...] | None = None
    """The first moves of the plan with their reasons, if this reconciliation made it."""
    cases: Counter[Case] = msgspec.field(default_factory=Counter)
    withheld: int = 0
    """Partitions that wait until others have finished; reconcile again when some have."""
    blocked: dict[int, str] = {}
    """By partition, why no order of moves reaches its target."""
    superseded: bool = False
    awaiting_approval: bool = False
    plan_problem: str = ""
    """Why the plan before this one could not be read and was replaced."""


class _Pass(msgspec.Struct, kw_only=True):
    """What the steps of one pass share."""

    snapshot: TableSnapshot
    desired: DesiredTable
    epoch: Compare
    adopting: str
    """The request to adopt the metastore that is being carried out; empty if there is none."""
    head: Head | None = None
    """The current plan; set by `choose_plan`."""
    outcome: Outcome | None = None
    """Set by the last step."""


def reconcile_table(
    desired: DesiredTable,
    *,
    keys: Keys,
    table: str,
    epoch: Compare,
    adopting: str = "",
) -> Requests[Outcome]:
    """Advance a table as far as possible now; call again when something that it depends on changes.

    `adopting` is a request to adopt the metastore that is being carried out.
    """
    while True:
        snapshot = TableSnapshot(keys, table, (yield read_table(keys, table)))
        run = _Pass(snapshot=snapshot, desired=desired, epoch=epoch, adopting=adopting)
        try:
            yield from _run_steps(run)
        except StaleSnapshotError:
            continue
        if run.outcome is not None:
            return run.outcome


def _run_steps(run: _Pass) -> Requests[None]:
    for step in STEPS:
        if (yield from step(run)):
            return


def check_desired_state(run: _Pass) -> Requests[bool]:
    """Refuse a desired state that the table can never reach."""
    validate_desired(run.snapshot, run.desired)
    yield from ()
    return False


def adopt_record(run: _Pass) -> Requests[bool]:
    """While the metastore is being adopted, write the table's record again."""
    if not run.adopting or not to_be_adopted(run.snapshot, run.desired.newest_plan, run.adopting):
        return False
    yield from _adopt(run.snapshot, run.desired, run.adopting, run.epoch)
    return True


def announce_table(run: _Pass) -> Requests[bool]:
    """Write the record of a new table; refuse if the table has data, which the metastore has lost."""
    snapshot, desired = run.snapshot, run.desired
    if snapshot.record_kv is not None:
        return False
    if desired.newest_plan:
        raise MetastoreLossError(
            f"etcd has no record of table {snapshot.table}, whose status names plan {desired.newest_plan}; its data "
            "stays on the stores; fix etcd, or set spec.adoptMetastore of the StoreCluster to the id of this etcd"
        )
    announced = table_lifecycle.announce(desired.record, keys=snapshot.keys, table=snapshot.table, epoch=run.epoch)
    yield from commit(announced)
    return True


def publish_spec(run: _Pass) -> Requests[bool]:
    """Copy a changed spec to the record: every input of a plan is a key."""
    snapshot = run.snapshot
    assert snapshot.record is not None
    assert snapshot.record_kv is not None
    value = msgspec.json.encode(_with_spec(snapshot.record, run.desired.record))
    if value == msgspec.json.encode(snapshot.record):
        return False
    key = snapshot.record_kv.key
    yield from commit(Txn((run.epoch, unchanged(key, snapshot.record_kv)), (Put(key, value),)))
    return True


def await_published_replicas(run: _Pass) -> Requests[bool]:
    """After an adoption, plan nothing until leaders have published the replicas of every partition."""
    snapshot = run.snapshot
    yield from ()
    if _is_ready(snapshot) and (missing := _unpublished(snapshot)):
        raise MetastoreLossError(
            f"{len(missing)} partitions of table {snapshot.table}, such as {missing[0]}, have not published their "
            "replicas since etcd was adopted; start the stores that hold most of their replicas"
        )
    return False


def choose_plan(run: _Pass) -> Requests[bool]:
    """Determine the current plan; if the rebalancer's targets differ from the newest plan's, write plan n+1."""
    run.head = yield from current_plan(run.snapshot, run.desired, run.epoch)
    return False


def create_partitions(run: _Pass) -> Requests[bool]:
    """Write the stable keys of a new table from its first plan, and mark the table as ready."""
    snapshot, epoch = run.snapshot, run.epoch
    if _is_ready(snapshot):
        return False
    assert run.head is not None
    assert snapshot.record_kv is not None
    keys, table, record = snapshot.keys, snapshot.table, snapshot.record_kv
    missing = _unpublished(snapshot)
    for txn in table_lifecycle.genesis(run.head.plan, missing, keys=keys, table=table, record=record, epoch=epoch):
        yield from commit(txn)
    yield from commit(table_lifecycle.make_ready(record, keys=keys, table=table, epoch=epoch))
    return True


def carry_out_plan(run: _Pass) -> Requests[bool]:
    """Write pending or planned for the partitions that may move now, unless the plan awaits approval."""
    assert run.head is not None
    desired = run.desired
    run.outcome = yield from _carry_out(run.snapshot, run.head, desired.view, desired.max_concurrent, run.epoch)
    return True


STEPS: Final[tuple[Callable[[_Pass], Requests[bool]], ...]] = (
    check_desired_state,
    adopt_record,
    announce_table,
    publish_spec,
    await_published_replicas,
    choose_plan,
    create_partitions,
    carry_out_plan,
)
"""The steps of one pass, in order; a step that returns True ends the pass."""


def _is_ready(snapshot: TableSnapshot) -> bool:
    return snapshot.record is not None and snapshot.record.state is TableState.READY


def _unpublished(snapshot: TableSnapshot) -> list[int]:
    """Return the partitions without a stable key."""
    assert snapshot.record is not None
    return [p for p in range(snapshot.record.partitions) if snapshot.partition(p).stable is None]


def _with_spec(before: TableRecord, desired: TableRecord) -> TableRecord:
    """Return the desired record with the lifecycle fields of the existing one."""
    return msgspec.structs.replace(
        desired,
        state=before.state,
        dropped=before.dropped,
        restored=before.restored,
        adopted=before.adopted,
        plan_floor=before.plan_floor,
    )


# Adoption


def to_be_adopted(snapshot: TableSnapshot, newest_plan: int, request: str) -> bool:
    """Whether a table that the metastore or the user's resources know has not been adopted yet."""
    if snapshot.tombstone_kv is not None:
        return False
    return newest_plan > 0 if snapshot.record is None else snapshot.record.adopted != request


def adopt_table(desired: DesiredTable, *, keys: Keys, table: str, epoch: Compare, request: str) -> Requests[None]:
    """Adopt a table that is being deleted, so that stores can publish what they hold of it."""
    while True:
        snapshot = TableSnapshot(keys, table, (yield read_table(keys, table)))
        if not to_be_adopted(snapshot, desired.newest_plan, request):
            return
        try:
            yield from _adopt(snapshot, desired, request, epoch)
        except StaleSnapshotError:
            continue


def _adopt(snapshot: TableSnapshot, desired: DesiredTable, request: str, epoch: Compare) -> Requests[None]:
    # The last plans before the loss may be in no status, but replicas have their numbers.
    floor = max(desired.newest_plan, snapshot.next_plan - 1) + UNKNOWN_PLANS
    keys, table, before = snapshot.keys, snapshot.table, snapshot.record_kv
    record = desired.record if snapshot.record is None else _with_spec(snapshot.record, desired.record)
    record = msgspec.structs.replace(record, dropped=None, restored="" if desired.owner == table else desired.owner)
    yield from commit(
        table_lifecycle.adopt(record, before, request=request, plan_floor=floor, keys=keys, table=table, epoch=epoch)
    )


# Plans


def continue_plan(desired: DesiredTable, *, keys: Keys, table: str, epoch: Compare) -> Requests[Outcome]:
    """Carry out the newest plan if the desired state cannot be planned."""
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


# Dropping


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
    """Drop a table as far as possible now; return True when nothing of it is left.

    `retired` tells which stores were removed on purpose with their volumes: these need not confirm. With `forced` no
    store needs to. `only_kept` drops only a table with retained data: a user may restore it at any moment.
    `await_publication` is False if all stores are registered: then an adopted table's replicas need not be known.
    """
    while True:
        found: Found = yield read_table(keys, table)
        snapshot = TableSnapshot(keys, table, found)
        try:
            if not forced and await_publication and _awaits_publication(snapshot):
                return False
            if snapshot.record_kv is None:
                return (yield from _finalize(snapshot, epoch, retired, forced=forced))
            if only_kept and (snapshot.record is None or snapshot.record.dropped is None):
                return False
            yield from _drop(snapshot, epoch)
        except StaleSnapshotError:
            continue


def _awaits_publication(snapshot: TableSnapshot) -> bool:
    """Whether the table was adopted and its leaders have not published all replicas yet."""
    record = snapshot.record
    return record is not None and _is_ready(snapshot) and bool(record.adopted) and bool(_unpublished(snapshot))


def _drop(snapshot: TableSnapshot, epoch: Compare) -> Requests[None]:
    assert snapshot.record is not None
    assert snapshot.record_kv is not None
    keys, table, record = snapshot.keys, snapshot.table, snapshot.record_kv
    if snapshot.record.state is not TableState.DROPPING:
        yield from commit(table_lifecycle.mark_dropping(record, keys=keys, table=table, epoch=epoch))
        return
    volumes = [(store.name, store.volume) for store in snapshot.stores.stores]
    yield from commit(table_lifecycle.drop(record, volumes, keys=keys, table=table, epoch=epoch))


def _finalize(
    snapshot: TableSnapshot, epoch: Compare, retired: Callable[[str], bool], *, forced: bool
) -> Requests[bool]:
    if snapshot.tombstone_kv is None:
        return True
    registered = snapshot.registered

    def gone(store: str, volume: str) -> bool:
        """An unavailable store may come back with its data; one with another volume cannot."""
        if store in registered:
            return forced or registered[store].volume != volume
        return forced or retired(store)

    txn = table_lifecycle.remove_tombstone(snapshot.tombstone_kv, gone=gone, epoch=epoch)
    if txn is None:
        return False
    yield from commit(txn)
    return True

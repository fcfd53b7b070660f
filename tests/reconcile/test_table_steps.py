"""Reconciling a table on a simulated metastore; an interrupted run is completed by the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from evenkeel.errors import InvalidInputError, PlanningError
from evenkeel.metastore.metastore_api import Delete, Op, Put, Txn
from evenkeel.model.views import Assignment, Choice
from evenkeel.protocol.keys import table_name
from evenkeel.protocol.operator_decision import Case
from evenkeel.protocol.records import Dropped, Leader, PlanState, StoreRecord, TableRecord, TableState, decode, shape
from evenkeel.protocol.table_lifecycle import confirm_drop, mark_dropping
from evenkeel.reconcile.desired_table import DesiredTable
from evenkeel.reconcile.dropped_tables import keep_table, restore_table
from evenkeel.reconcile.store_states import DesiredStores
from evenkeel.reconcile.table_steps import continue_plan, drop_table, reconcile_table
from tests.reconcile.support import KEYS, PARTITIONS, TABLE, Cluster, Killed, desired, store_cluster


def assert_handled(cluster: Cluster) -> None:
    """Check that every partition has reached the newest plan's target or is on its way."""
    snapshot = cluster.snapshot()
    assert snapshot.plan is not None
    for partition in range(PARTITIONS):
        view = snapshot.partition(partition)
        assert view.stable is not None
        ahead = view.pending.last if view.pending is not None else view.stable.peers
        assert shape(ahead) == shape(snapshot.plan.target(partition))
        assert view.trigger == snapshot.plan.n


def test_creates_a_table() -> None:
    """A new table gets plan 1 and its stable keys marked genesis, and is ready."""
    cluster = Cluster()
    outcome = cluster.reconcile(desired())
    snapshot = cluster.snapshot()
    assert outcome.plan == 1
    assert outcome.cases == {Case.HANDLED: PARTITIONS}
    assert snapshot.record is not None
    assert snapshot.record.state is TableState.READY
    assert all(snapshot.partition(p).stable.genesis for p in range(PARTITIONS))  # type: ignore[union-attr]
    assert_handled(cluster)


def test_does_nothing_twice() -> None:
    """A reconciled table writes nothing."""
    cluster = Cluster()
    cluster.reconcile(desired())
    before = cluster.metastore.revision
    assert cluster.reconcile(desired()).moves is None
    assert cluster.metastore.revision == before


def test_no_new_plan_is_made_while_its_basis_is_the_same() -> None:
    """Only the spec and the stores are inputs of a plan, not the location of replicas."""
    cluster = Cluster()
    cluster.reconcile(desired())
    before = cluster.snapshot().plan
    assert before is not None
    assert before.head.basis == cluster.snapshot().basis(desired().basis())
    assert before.head.basis != cluster.snapshot().basis(desired(5).basis())
    cluster.drain("s0")
    assert before.head.basis != cluster.snapshot().basis(desired().basis())


def test_the_rebalancer_is_asked_once_per_change() -> None:
    """A change with the same targets is recorded, so that the rebalancer does not run again."""
    cluster = Cluster()
    cluster.reconcile(desired())
    cluster.put(KEYS.store("s0"), StoreRecord(volume="v0", labels={"disk": "ssd"}))
    asked = cluster.placements
    for _ in range(3):
        assert cluster.reconcile(desired()).plan == 1
    assert cluster.placements == asked + 1


def test_a_manual_plan_waits() -> None:
    """With manual approval the plan is written with its moves, but not carried out."""
    cluster = Cluster()
    cluster.reconcile(msgspec.structs.replace(desired(), manual=True))
    outcome = cluster.reconcile(msgspec.structs.replace(desired(5), manual=True))
    assert (outcome.plan, outcome.awaiting_approval) == (2, True)
    assert outcome.moves
    assert cluster.snapshot().partition(0).pending is None


def manual(replicas: int, **approvals: str) -> DesiredTable:
    """Return a desired table with so many replicas and approvals as `plan_2=<hash>`."""
    numbers = {int(name.removeprefix("plan_")): digest for name, digest in approvals.items()}
    return msgspec.structs.replace(desired(replicas), manual=True, approvals=numbers)


def waiting(cluster: Cluster) -> tuple[int, bool]:
    """Return the newest plan's number, and whether it awaits approval."""
    plan = cluster.snapshot().plan
    assert plan is not None
    return plan.n, plan.head.state is PlanState.AWAITING_APPROVAL


def test_what_is_carried_out_is_what_was_approved() -> None:
    """An approval is valid only for the plan with its number and hash."""
    cluster = Cluster()
    cluster.reconcile(manual(3))
    cluster.reconcile(manual(5))
    plan = cluster.snapshot().plan
    assert plan is not None
    for other in (manual(5, plan_2="0" * 32), manual(5, plan_1=plan.head.hash), manual(5, plan_3=plan.head.hash)):
        assert cluster.reconcile(other).awaiting_approval
    outcome = cluster.reconcile(manual(5, plan_2=plan.head.hash))
    assert (outcome.plan, outcome.cases) == (2, {Case.STARTED: PARTITIONS})
    assert waiting(cluster) == (2, False)
    assert_handled(cluster)


def test_an_approval_does_not_reach_what_came_after_it() -> None:
    """A plan that replaces an approved plan before it begins needs its own approval."""
    cluster = Cluster()
    cluster.reconcile(manual(3))
    cluster.reconcile(manual(5))
    plan = cluster.snapshot().plan
    assert plan is not None
    cluster.put(KEYS.store("s5"), StoreRecord(volume="v5"))
    outcome = cluster.reconcile(manual(5, plan_2=plan.head.hash))
    assert (outcome.plan, outcome.awaiting_approval) == (3, True)
    assert cluster.snapshot().partition(0).pending is None


def test_an_approval_loses_against_a_newer_plan_written_in_between() -> None:
    """The transaction that activates a plan compares that it is still the same plan."""
    cluster = Cluster()
    cluster.reconcile(manual(3))
    cluster.reconcile(manual(5))
    plan, head = cluster.snapshot().plan, cluster.metastore.get(KEYS.plan_head(TABLE))
    assert plan is not None
    assert head is not None
    other = msgspec.structs.replace(plan.head, hash="f" * 32)
    cluster.before = lambda request: cluster.put(KEYS.plan_head(TABLE), other) if request == first else None
    first = cluster.requests + 1
    outcome = cluster.reconcile(manual(5, plan_2=plan.head.hash))
    assert (outcome.plan, outcome.awaiting_approval) == (3, True)


def test_what_changes_nothing_needs_no_approval() -> None:
    """Reverting the change while its plan awaits approval leads to a plan that needs none."""
    cluster = Cluster()
    cluster.reconcile(manual(3))
    cluster.reconcile(manual(5))
    assert waiting(cluster) == (2, True)
    outcome = cluster.reconcile(manual(3))
    assert (outcome.plan, outcome.awaiting_approval, outcome.cases) == (3, False, {Case.REACHED: PARTITIONS})


def test_a_plan_that_waits_begins_when_approval_is_automatic_again() -> None:
    """Switching to Auto approves the plan, whether or not a new one is made."""
    for other_spec in (b"{}", b'{"approval":"Auto"}'):
        cluster = Cluster()
        cluster.reconcile(manual(3))
        cluster.reconcile(manual(5))
        record = msgspec.structs.replace(desired(5).record, spec=msgspec.Raw(other_spec))
        outcome = cluster.reconcile(msgspec.structs.replace(desired(5), record=record))
        assert (outcome.plan, outcome.cases) == (2, {Case.STARTED: PARTITIONS})


def test_replacing_an_unreadable_plan_needs_approval() -> None:
    """Only a table's first plan needs no approval."""
    cluster = Cluster()
    cluster.reconcile(manual(3))
    cluster.put(KEYS.plan_head(TABLE), "nonsense")
    cluster.put(KEYS.store("s5"), StoreRecord(volume="v5"))
    assert cluster.reconcile(manual(3)).awaiting_approval


@pytest.mark.parametrize("mode", ["SemiAuto", "Customized"])
def test_another_leader_alone_is_a_plan_where_users_choose(mode: str) -> None:
    """A user's choice of leader makes a plan even if no replica moves and that store already leads."""
    cluster = Cluster()
    cluster.reconcile(desired())
    plan = cluster.snapshot().plan
    assert plan is not None
    rows = {p: tuple(peer.store for peer in plan.target(p)) for p in range(PARTITIONS)}
    chosen = {p: Choice(stores=row, leader=row[2] if p == 7 else None) for p, row in rows.items()}
    cluster.put(KEYS.leader(TABLE, 7), Leader(store=rows[7][2], term=2))
    outcome = cluster.reconcile(msgspec.structs.replace(desired(), mode=mode, choices=chosen))
    after = cluster.snapshot().plan
    assert after is not None
    assert (outcome.plan, after.target(7)[0].store, after.target(8)[0].store) == (2, rows[7][2], rows[8][0])


def test_a_lost_stores_replicas_of_one_table_alone_are_replaced() -> None:
    """One table may replace a store's replicas while the others still wait for it."""
    cluster = Cluster()
    cluster.reconcile(desired())
    cluster.give_up("s2", "another.1")
    assert cluster.reconcile(desired()).plan == 1
    cluster.give_up("s2", "another.1", TABLE)
    assert cluster.reconcile(desired()).cases[Case.STARTED] == 42


def test_overrides_reach_the_plan_through_the_stores_state() -> None:
    """The operator's overrides of a store count while they are for its current volume."""
    cluster = Cluster()
    cluster.reconcile(desired())
    cluster.judge(DesiredStores(cluster=store_cluster(overrides=[{"name": "s0", "weight": 0.0}])))
    cluster.reconcile(desired())
    plan = cluster.snapshot().plan
    assert plan is not None
    assert all("s0" not in {peer.store for peer in plan.target(p)} for p in range(PARTITIONS))
    cluster.put(KEYS.store("s0"), StoreRecord(volume="v0-new"))
    assert {store.name: store.weight for store in cluster.snapshot().stores.stores}["s0"] == 1.0


def test_a_lost_store_is_no_reason_to_plan_again() -> None:
    """A lost store alone changes no plan's basis."""
    cluster = Cluster()
    cluster.judge()
    cluster.reconcile(desired())
    cluster.metastore.txn(Txn(success=(Delete(KEYS.store("s2")),)))
    cluster.judge()
    asked, revision = cluster.placements, cluster.metastore.revision
    cluster.reconcile(desired())
    assert (cluster.placements, cluster.metastore.revision) == (asked, revision)


def test_the_last_valid_plan_continues() -> None:
    """If the spec cannot be planned, withheld partitions of the previous plan still reach their targets."""
    cluster = Cluster()
    cluster.reconcile(desired(max_concurrent=20))
    cluster.reconcile(desired(5, max_concurrent=20))
    for partition in range(PARTITIONS):
        if cluster.snapshot().partition(partition).pending is not None:
            cluster.finish(partition)
    impossible = desired(9, max_concurrent=20)
    with pytest.raises(PlanningError, match="replicas 9 need 9 stores but only 5 are usable"):
        cluster.reconcile(impossible)
    outcome = cluster.drive(continue_plan(impossible, keys=KEYS, table=TABLE, epoch=cluster.epoch))
    assert (outcome.plan, outcome.cases[Case.STARTED]) == (2, 20)


@pytest.mark.parametrize("state", ["nothing", "creating", "waiting"])
def test_no_plan_to_continue(state: str) -> None:
    """A table without partitions, or whose plan awaits approval, is unchanged."""
    cluster = Cluster()
    if state == "creating":
        cluster.put(KEYS.table(TABLE), desired().record)
    if state == "waiting":
        cluster.reconcile(manual(3))
        cluster.reconcile(manual(5))
    before = cluster.metastore.revision
    cluster.drive(continue_plan(desired(9), keys=KEYS, table=TABLE, epoch=cluster.epoch))
    assert cluster.metastore.revision == before


@pytest.mark.parametrize("mode", ["SemiAuto", "Customized"])
def test_users_choices_reach_the_plan(mode: str) -> None:
    """PartitionAssignments place replicas in SemiAuto and Customized, and a changed one makes a new plan."""
    cluster = Cluster()
    cluster.reconcile(desired())
    chosen = {p: Choice(stores=("s2", "s3", "s4")) for p in range(PARTITIONS)}
    cluster.give_up("s1")
    outcome = cluster.reconcile(msgspec.structs.replace(desired(), mode=mode, choices={0: chosen[0]}))
    assert outcome.plan == 2
    outcome = cluster.reconcile(msgspec.structs.replace(desired(), mode=mode, choices=chosen))
    plan = cluster.snapshot().plan
    assert plan is not None
    assert {peer.store for p in range(PARTITIONS) for peer in plan.target(p)} == {"s2", "s3", "s4"}


def test_a_users_class_remembers() -> None:
    """A rebalancer's context is stored with its plan and passed to its next run."""
    cluster = Cluster()
    own = msgspec.structs.replace(desired(), mode="UserDefined", class_name="counting:Counting")
    cluster.reconcile(own)
    cluster.put(KEYS.store("s9"), StoreRecord(volume="v9"))
    cluster.reconcile(own)
    assert cluster.snapshot().context == b"2"


def test_a_table_being_dropped_is_left_alone() -> None:
    """Neither a dropping table nor the uid of a dropped one is created again."""
    cluster = Cluster()
    cluster.reconcile(desired())
    record = cluster.metastore.get(KEYS.table(TABLE))
    assert record is not None
    cluster.metastore.txn(mark_dropping(record, keys=KEYS, table=TABLE, epoch=cluster.epoch))
    with pytest.raises(InvalidInputError, match="is being dropped"):
        cluster.reconcile(desired())
    cluster.drive(drop_table(keys=KEYS, table=TABLE, epoch=cluster.epoch))
    with pytest.raises(InvalidInputError, match="is being dropped"):
        cluster.reconcile(desired())


def test_partitions_cannot_change() -> None:
    """A different number of partitions is refused before anything is written."""
    cluster = Cluster()
    cluster.reconcile(desired())
    before = cluster.metastore.revision
    more = msgspec.structs.replace(desired(), record=msgspec.structs.replace(desired().record, partitions=200))
    with pytest.raises(InvalidInputError, match="partitions: got 200; allowed: 70"):
        cluster.reconcile(more)
    assert cluster.metastore.revision == before


def test_a_moved_leader_is_no_reason_for_a_plan() -> None:
    """A changed leader makes no plan."""
    cluster = Cluster()
    cluster.reconcile(desired())
    for partition in range(PARTITIONS):
        stable = cluster.snapshot().partition(partition).stable
        assert stable is not None
        cluster.put(KEYS.leader(TABLE, partition), Leader(store=stable.peers[-1].store, term=2))
    assert cluster.reconcile(desired()).moves is None


def test_scaling_makes_a_plan_and_carries_it_out() -> None:
    """More replicas make a new plan, which is written to every partition."""
    cluster = Cluster()
    cluster.reconcile(desired())
    outcome = cluster.reconcile(desired(5))
    assert outcome.plan == 2
    assert outcome.moves is not None
    assert len(outcome.moves) == 2 * PARTITIONS
    assert outcome.cases == {Case.STARTED: PARTITIONS}
    assert_handled(cluster)


def test_moves_beyond_the_limit_wait() -> None:
    """At most `maxConcurrent` partitions change at once; the plan reaches the others afterwards."""
    cluster = Cluster()
    cluster.reconcile(desired(max_concurrent=20))
    outcome = cluster.reconcile(desired(5, max_concurrent=20))
    assert (outcome.cases, outcome.withheld) == ({Case.STARTED: 20}, 50)
    outcome = cluster.reconcile(desired(5, max_concurrent=20))
    assert (outcome.plan, outcome.cases, outcome.withheld) == (2, {Case.HANDLED: 20}, 50)
    started = [p for p in range(PARTITIONS) if cluster.snapshot().partition(p).pending is not None]
    for partition in started[:5]:
        cluster.finish(partition)
    outcome = cluster.reconcile(desired(5, max_concurrent=20))
    assert (outcome.plan, outcome.cases) == (2, {Case.HANDLED: 20, Case.STARTED: 5})


def test_full_stores_are_never_overfilled() -> None:
    """A move that would exceed a store's cap waits, and an impossible one reports why."""
    cluster = Cluster(stores=3)
    cluster.reconcile(desired())
    cluster.put(KEYS.store("s3"), StoreRecord(volume="v3", capacity=10))
    outcome = cluster.reconcile(desired())
    assert outcome.plan == 2
    snapshot = cluster.snapshot()
    gaining = [p for p in range(PARTITIONS) if any(peer.store == "s3" for peer in snapshot.partition(p).peers())]
    assert len(gaining) == 10


def test_the_reasons_of_moves_are_kept_with_the_plan() -> None:
    """Plan 2 stores why each partition moves."""
    cluster = Cluster()
    cluster.reconcile(desired())
    cluster.drain("s0")
    cluster.reconcile(desired())
    plan = cluster.snapshot().plan
    assert plan is not None
    reasons = [reason for partition in range(PARTITIONS) for reason in plan.reasons(partition)]
    assert reasons
    assert all("s0" in reason and "draining" in reason for reason in reasons)


@pytest.mark.parametrize("successor", [False, True], ids=["same operator", "successor"])
def test_killed_anywhere_it_is_resumed(successor: bool) -> None:
    """Killed before any of its transactions, creation and scaling are completed by the next operator."""

    def die_at(number: int) -> Callable[[int], None]:
        def before(request: int) -> None:
            if request == number:
                raise Killed

        return before

    kills = 0
    for number in range(1, 100):
        cluster = Cluster()
        cluster.before = die_at(number)
        for replicas in (3, 5):
            while True:
                try:
                    cluster.reconcile(desired(replicas))
                    break
                except Killed:
                    kills += 1
                    if successor:
                        cluster.take_epoch()
            assert_handled(cluster)
        if cluster.requests < number:
            break
    assert kills > 8


def test_a_fenced_operator_changes_nothing() -> None:
    """After a new operator holds the epoch, writes of the old one are refused."""
    cluster = Cluster()
    cluster.reconcile(desired())
    deposed = cluster.epoch
    cluster.take_epoch()
    before = cluster.metastore.revision
    requests = reconcile_table(desired(5), keys=KEYS, table=TABLE, epoch=deposed)
    answer: Any = None
    for _ in range(6):
        answer = cluster.answer(requests.send(answer))
    assert cluster.metastore.revision == before


def test_a_wiped_store_is_an_ordinary_move() -> None:
    """A store that comes back with another volume gets its replicas again."""
    cluster = Cluster(stores=3)
    cluster.reconcile(desired())
    cluster.put(KEYS.store("s1"), StoreRecord(volume="v1-new"))
    outcome = cluster.reconcile(desired())
    assert outcome.cases == {Case.STARTED: PARTITIONS}
    view = cluster.snapshot().partition(0)
    assert view.pending is not None
    moved = {peer.volume: peer.replica for peer in view.pending.last}
    assert moved == {"v0": 1, "v1-new": 2, "v2": 1}


def test_a_lost_stores_replicas_go_elsewhere() -> None:
    """A replaced store holds nothing in the new plan, and a change that names it is overwritten in every mode."""
    cluster = Cluster()
    queued = msgspec.structs.replace(desired(5), record=msgspec.structs.replace(desired(5).record, retarget="Queue"))
    three = msgspec.structs.replace(desired(), record=msgspec.structs.replace(desired().record, retarget="Queue"))
    cluster.reconcile(three)
    cluster.put(KEYS.store("s9"), StoreRecord(volume="v9"))
    cluster.reconcile(queued)
    cluster.give_up("s4")
    outcome = cluster.reconcile(queued)
    snapshot = cluster.snapshot()
    assert outcome.cases[Case.ADJUSTED] > 0
    assert snapshot.plan is not None
    assert all("s4" not in {peer.store for peer in snapshot.plan.target(p)} for p in range(PARTITIONS))
    assert_handled(cluster)


def test_a_lost_store_keeps_its_replicas_until_the_delay_ends() -> None:
    """When a store's lease ends nothing moves until `lostAfter` has passed."""
    cluster = Cluster()
    cluster.judge()
    cluster.reconcile(desired())
    cluster.metastore.txn(Txn(success=(Delete(KEYS.store("s2")),)))
    outcome = cluster.reconcile(desired())
    assert (outcome.plan, outcome.moves) == (1, None)
    cluster.give_up("s2")
    assert cluster.reconcile(desired()).cases[Case.STARTED] == 42


@pytest.mark.parametrize("damage", ["slice", "head", "no head"])
def test_a_plan_that_cannot_be_read_is_replaced(damage: str) -> None:
    """A malformed plan is replaced by one with a higher number, which every partition handles."""
    cluster = Cluster()
    cluster.reconcile(desired())
    cluster.reconcile(desired(5))
    head = KEYS.plan_head(TABLE)
    broken: dict[str, Op] = {
        "slice": Put(KEYS.plan_slice(TABLE, 2, 0), b"{}"),
        "head": Put(head, b"nonsense"),
        "no head": Delete(head),
    }
    cluster.metastore.txn(Txn(success=(broken[damage],)))
    outcome = cluster.reconcile(desired(5))
    assert outcome.plan == 3
    assert outcome.cases == {Case.UNDER_WAY: PARTITIONS}
    assert bool(outcome.plan_problem) is (damage != "no head")
    assert_handled(cluster)


def test_a_drop_waits_for_lost_stores() -> None:
    """Dropping waits for a lost store: it may come back with its data."""
    cluster = Cluster(stores=3)
    cluster.reconcile(desired())
    cluster.metastore.txn(Txn(success=(Delete(KEYS.store("s1")),)))
    assert cluster.drive(drop_table(keys=KEYS, table=TABLE, epoch=cluster.epoch)) is False
    tombstone = cluster.metastore.get(KEYS.tombstone(TABLE))
    assert tombstone is not None
    assert confirm_drop(tombstone, store="s1", volume="v1") is not None
    for number in (0, 2):
        tombstone = cluster.metastore.get(KEYS.tombstone(TABLE))
        assert tombstone is not None
        cluster.metastore.txn(confirm_drop(tombstone, store=f"s{number}", volume=f"v{number}") or Txn())
    assert cluster.drive(drop_table(keys=KEYS, table=TABLE, epoch=cluster.epoch)) is False
    cluster.put(KEYS.store("s1"), StoreRecord(volume="v1-new"))
    assert cluster.drive(drop_table(keys=KEYS, table=TABLE, epoch=cluster.epoch)) is True


def test_a_drop_does_not_wait_for_a_removed_store() -> None:
    """Dropping does not wait for a store that was removed on purpose with its volume."""
    cluster = Cluster(stores=3)
    cluster.reconcile(desired())
    cluster.metastore.txn(Txn(success=(Delete(KEYS.store("s1")),)))
    assert cluster.drive(drop_table(keys=KEYS, table=TABLE, epoch=cluster.epoch)) is False
    for number in (0, 2):
        tombstone = cluster.metastore.get(KEYS.tombstone(TABLE))
        assert tombstone is not None
        cluster.metastore.txn(confirm_drop(tombstone, store=f"s{number}", volume=f"v{number}") or Txn())
    for gone, done in (("s0", False), ("s1", True)):
        requests = drop_table(keys=KEYS, table=TABLE, epoch=cluster.epoch, retired={gone}.__contains__)
        assert cluster.drive(requests) is done


@pytest.mark.parametrize("step", [1, 2])
def test_a_table_restored_in_between_is_not_dropped(step: int) -> None:
    """If a table expires while a user restores it, the first commit wins."""
    cluster = Cluster(stores=3)
    cluster.reconcile(desired())
    keep_for_a_day = keep_table(Dropped(since=0.0, until=1.0), keys=KEYS, table=TABLE, epoch=cluster.epoch)
    assert cluster.drive(keep_for_a_day) is True
    newer, uid = f"{table_name(TABLE)}.newer", TABLE.partition(".")[2]
    before, refused = cluster.requests, list[str]()

    def restore(requests: int) -> None:
        if requests == before + step:
            try:
                cluster.drive(restore_table(desired(), keys=KEYS, table=newer, uid=uid, epoch=cluster.epoch))
            except InvalidInputError as error:
                refused.append(str(error))

    cluster.before = restore
    cluster.drive(drop_table(keys=KEYS, table=TABLE, epoch=cluster.epoch, only_kept=True))
    found = cluster.metastore.get(KEYS.table(TABLE))
    if step == 1:
        assert found is not None
        assert decode(TableRecord, found.value, key=found.key).restored == newer
        assert cluster.metastore.get(KEYS.tombstone(TABLE)) is None
    else:
        assert "is being dropped" in refused[0]
        assert found is None


def test_drops_a_table_and_leaves_nothing() -> None:
    """Dropping waits for the confirmation of every volume, and then nothing is left."""
    cluster = Cluster(stores=3)
    cluster.reconcile(desired())
    assert cluster.drive(drop_table(keys=KEYS, table=TABLE, epoch=cluster.epoch)) is False
    for number in range(3):
        tombstone = cluster.metastore.get(KEYS.tombstone(TABLE))
        assert tombstone is not None
        confirmed = confirm_drop(tombstone, store=f"s{number}", volume=f"v{number}")
        assert confirmed is not None
        cluster.metastore.txn(confirmed)
    assert cluster.drive(drop_table(keys=KEYS, table=TABLE, epoch=cluster.epoch)) is True
    assert [kv.key for kv in cluster.metastore.range(KEYS.root).kvs if TABLE in kv.key] == []


def test_previous_is_the_last_requested_assignment() -> None:
    """A plan starts from planned, else the end of pending, so that two changes in a row do not move data twice."""
    cluster = Cluster()
    cluster.reconcile(desired())
    cluster.reconcile(desired(5))
    previous: Assignment = cluster.snapshot().previous(PARTITIONS)
    assert {len(previous.stores_of(p)) for p in range(PARTITIONS)} == {5}
    assert previous.voters == 5

"""A Table's status: counts, stages, conditions and their times."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evenkeel.metastore.metastore_api import Delete, KeyValue, Put, Txn
from evenkeel.model.conditions import Reason
from evenkeel.model.partitionassignment import PeerStatus
from evenkeel.model.table import Table, TableStatus
from evenkeel.protocol.records import (
    Leader,
    Lock,
    Peer,
    Pending,
    Planned,
    PlanState,
    Stable,
    StoreLoad,
    StoreRecord,
    TableState,
    encode,
)
from evenkeel.reconcile.desired_table import desired_table
from evenkeel.reconcile.partition_status import partition_statuses, problems_of
from evenkeel.reconcile.readiness import Problem
from evenkeel.reconcile.store_reports import Reports
from evenkeel.reconcile.table_status import problem_status, table_status
from tests.reconcile.support import KEYS, PARTITIONS, TABLE, Cluster, conditions, message, table

FIRST, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
IMPOSSIBLE = Problem(Reason.NO_FEASIBLE_PLACEMENT, "not enough stores")
WELL = {
    "Ready": ("True", "AsExpected"),
    "Available": ("True", "AsExpected"),
    "Progressing": ("False", "AsExpected"),
    "Balanced": ("True", "AsExpected"),
    "Degraded": ("False", "AsExpected"),
}


class Scene(Cluster):
    """A table's resource and its keys in the metastore."""

    def __init__(self, stores: int = 5, *, led: bool = True, **spec: Any) -> None:
        super().__init__(stores)
        self.table = table(**spec)
        self.loads: dict[str, StoreLoad] = {}
        self.carry()
        for partition in range(PARTITIONS if led else 0):
            self.lead(partition)

    def carry(self, *, max_concurrent: int | None = None) -> None:
        """Reconcile the table."""
        self.reconcile(msgspec.structs.replace(desired_table(self.table), max_concurrent=max_concurrent))

    def change(self, **spec: Any) -> None:
        """Change the table's spec."""
        changed = table(generation=self.table.metadata.generation + 1, **spec)
        self.table = changed.model_copy(update={"status": self.table.status})

    def lead(self, partition: int, store: str = "") -> None:
        stable = self.snapshot().partition(partition).stable
        assert stable is not None
        self.put(KEYS.leader(TABLE, partition), Leader(store=store or stable.peers[0].store, term=3))

    def lead_from(self, store: str) -> None:
        """Make a store lead every partition of which it has a replica."""
        for partition in range(PARTITIONS):
            if store in self.holders(partition):
                self.lead(partition, store)

    def holders(self, partition: int) -> list[str]:
        stable = self.snapshot().partition(partition).stable
        assert stable is not None
        return [peer.store for peer in stable.peers]

    def lose(self, *stores: str) -> None:
        """End the leases of stores."""
        for store in stores:
            self.metastore.txn(Txn(success=(Delete(KEYS.store(store)),)))

    def come_back(self, store: str, volume: str) -> None:
        self.put(KEYS.store(store), StoreRecord(volume=volume))

    def status(self, now: str = FIRST, **known: Any) -> TableStatus:
        """Derive the status, and store it in the table."""
        snapshot = self.snapshot()
        partitions = partition_statuses(snapshot, self.loads)
        given: dict[str, Any] = {"sizes": {}, **known}
        status = table_status(self.table, snapshot, partitions, loads=self.loads, now=now, **given)
        self.table = self.table.model_copy(update={"status": status})
        return status

    def finish_all(self) -> None:
        for partition in range(PARTITIONS):
            if self.snapshot().partition(partition).pending is not None:
                self.finish(partition)


def times(status: TableStatus) -> dict[str, str]:
    return {entry.type: entry.last_transition_time for entry in status.conditions}


def test_an_idle_table() -> None:
    """Everything is as expected, and the figures are the metastore's."""
    scene = Scene()
    status = scene.status()
    assert conditions(status) == WELL
    assert (status.partitions, status.replicas, status.consensus_size) == (PARTITIONS, 3, 3)
    assert (status.moving, status.leaderless, status.under_replicated, status.stuck) == (0, 0, 0, ())
    plan = scene.snapshot().plan
    assert plan is not None
    assert (status.plan, status.plan_hash, status.observed_generation) == (1, plan.head.hash, 1)
    assert status.progress is not None
    assert (status.progress.percentage, status.progress.expected_at) == (100, None)


def test_a_second_pass_changes_nothing() -> None:
    """A status does not depend on the time, so it is not written repeatedly."""
    scene = Scene()
    scene.change(replicas=5)
    scene.carry(max_concurrent=20)
    assert scene.status(FIRST) == scene.status(LATER)


def test_times_stay_where_nothing_changed() -> None:
    """Only a condition whose status changed has a new time."""
    scene = Scene()
    scene.status(FIRST)
    scene.change(replicas=5)
    scene.carry(max_concurrent=20)
    status = scene.status(LATER)
    assert {kind for kind, time in times(status).items() if time == LATER} == {
        "Progressing",
        "Balanced",
        "Reconciling",
    }
    assert {entry.observed_generation for entry in status.conditions} == {2}


def test_a_rebalance() -> None:
    """Moving and withheld partitions are not balanced, and progress is counted."""
    scene = Scene()
    scene.status()
    scene.change(replicas=5)
    scene.carry(max_concurrent=20)
    status = scene.status()
    assert (status.moving, status.replicas, status.under_replicated) == (20, 3, PARTITIONS)
    assert conditions(status) == WELL | {"Progressing": ("True", "Rebalancing"), "Balanced": ("False", "Rebalancing")}
    assert message(status, "Progressing") == "plan 2: 0 of 70 partitions have reached their targets"
    stages = [entry.stage for entry in partition_statuses(scene.snapshot(), {})]
    assert (stages.count("CatchingUp"), stages.count("Waiting")) == (20, 50)
    scene.finish_all()
    status = scene.status(LATER)
    assert status.moving == 0
    assert conditions(status)["Balanced"] == ("False", "Rebalancing")
    assert status.progress is not None
    assert (status.progress.moves_done, status.progress.percentage) == (20, 28)
    assert (status.progress.started_at, status.progress.expected_at) == (FIRST, "2026-01-01T00:03:30Z")


def test_progress_counts_what_the_plan_changes() -> None:
    """A plan that changes few partitions does not start nearly done."""
    scene = Scene()
    scene.drain("s0")
    scene.carry()
    status = scene.status()
    assert status.progress is not None
    assert (status.progress.moves_done, status.progress.moves_total) == (0, status.moving)
    assert 0 < status.moving < PARTITIONS


def test_a_table_that_is_created() -> None:
    """Until every partition has its first leader, the table is Progressing and not Degraded."""
    scene = Scene(led=False)
    scene.put(KEYS.table(TABLE), desired_table(scene.table).record)
    unserved = dict.fromkeys(("Ready", "Available"), ("False", "Reconciling"))
    creating = {**unserved, "Progressing": ("True", "Reconciling")}
    assert conditions(scene.status()) == WELL | creating | {"Balanced": ("False", "Reconciling")}
    ready = msgspec.structs.replace(desired_table(scene.table).record, state=TableState.READY)
    scene.put(KEYS.table(TABLE), ready)
    status = scene.status()
    assert conditions(status) == WELL | unserved
    assert (status.leaderless, status.stuck) == (PARTITIONS, ())


def test_partitions_that_lose_their_leader() -> None:
    """After the table was ready, a partition without a leader degrades it."""
    scene = Scene()
    scene.status(FIRST)
    scene.metastore.txn(Txn(success=(Delete(KEYS.leader(TABLE, 3)),)))
    scene.status(LATER)
    status = scene.status("2026-01-01T00:02:00Z")
    unserved = dict.fromkeys(("Ready", "Available"), ("False", "NoLeader"))
    assert conditions(status) == WELL | unserved | {"Degraded": ("True", "NoLeader")}
    assert [(entry.partition, entry.stage, entry.since) for entry in status.stuck] == [(3, "Leaderless", LATER)]


def test_a_leader_on_a_lost_store_does_not_count() -> None:
    """The key of a failed leader stays until another store leads, and is ignored."""
    scene = Scene()
    scene.status()
    scene.lead_from("s0")
    scene.metastore.txn(Txn(success=(Delete(KEYS.store("s0")),)))
    status = scene.status()
    shown = partition_statuses(scene.snapshot(), {})
    assert all((entry.leader == "") == ("s0" in scene.holders(entry.partition)) for entry in shown)
    assert conditions(status)["Degraded"] == ("True", "NoLeader")
    assert "stores that hold replicas are unavailable: s0; start them again" in message(status, "Degraded")
    assert status.under_replicated > 0


def test_two_of_three_stores_are_lost() -> None:
    """No partition has a quorum, whichever store led; the status names the stores to start, and recovers with them."""
    scene = Scene(3)
    scene.lead_from("s0")
    scene.status(FIRST)
    scene.lose("s0", "s1")
    status = scene.status(LATER)
    assert conditions(status)["Ready"] == ("False", "NoQuorum")
    assert conditions(status)["Degraded"] == ("True", "NoQuorum")
    assert status.leaderless == PARTITIONS
    assert "run on other volumes than before: s0, s1; start these stores with" in message(status, "Ready")
    assert {entry.stage for entry in partition_statuses(scene.snapshot(), {})} == {"Leaderless"}
    scene.come_back("s0", "v0")
    scene.come_back("s1", "v1")
    assert conditions(scene.status()) == WELL


def test_a_sole_replica_comes_back_empty() -> None:
    """The store is registered and the key names it, but the volume with the data is gone."""
    scene = Scene(1, replicas=1)
    scene.status(FIRST)
    scene.lose("s0")
    assert conditions(scene.status(LATER))["Ready"] == ("False", "NoQuorum")
    scene.come_back("s0", "v9")
    status = scene.status(LATER)
    assert conditions(status)["Ready"] == ("False", "DataLost")
    assert (status.leaderless, status.stuck[0].stage) == (PARTITIONS, "Leaderless")
    assert "delete the table and load its rows again" in message(status, "Ready")
    scene.come_back("s0", "v0")
    assert conditions(scene.status(LATER)) == WELL


def test_a_majority_that_comes_back_empty_is_no_quorum() -> None:
    """Data is not lost while one replica has it, but there is no quorum."""
    scene = Scene(3)
    scene.lead_from("s0")
    scene.status()
    scene.come_back("s0", "v8")
    scene.come_back("s1", "v9")
    assert conditions(scene.status())["Ready"] == ("False", "NoQuorum")


def test_all_replicas_are_damaged() -> None:
    """The stores are registered, but no replica can serve, and the leader has withdrawn its report."""
    scene = Scene(3)
    scene.status()
    scene.metastore.txn(Txn(success=(Delete(KEYS.leader(TABLE, 4)),)))
    sick = load(problems={f"{TABLE}/4": "bad block"}, damaged=(f"{TABLE}/4",))
    scene.loads = {"s0": sick, "s1": sick}
    assert conditions(scene.status())["Ready"] == ("False", "NoLeader")
    scene.loads["s2"] = sick
    status = scene.status()
    assert conditions(status)["Ready"] == ("False", "ReplicaDamaged")
    assert "because the replicas on these stores are damaged: s0, s1, s2" in message(status, "Ready")
    scene.lead(4)
    scene.loads = {}
    assert conditions(scene.status()) == WELL


class Moving(Scene):
    """A table with one replica per partition; partition 0 moves from s0 to s1."""

    def __init__(self, *, locked: bool) -> None:
        super().__init__(3, replicas=1)
        self.status()
        before, after = (Peer(store=f"s{n}", volume=f"v{n}", replica=n + 1) for n in range(2))
        keys = KEYS.partition(TABLE, 0)
        self.put(keys.stable, Stable((before,)))
        self.put(keys.pending, Pending(((after,),)))
        if locked:
            self.put(keys.lock, Lock(token=1, term=3))
        self.metastore.txn(Txn(success=(Delete(KEYS.leader(TABLE, 0)),)))

    def stuck(self) -> str:
        """Return why partition 0 is unavailable."""
        return next(entry.reason for entry in self.status().stuck if entry.partition == 0)


@pytest.mark.parametrize("dead", ["s0", "s1"])
def test_a_joint_configuration_needs_both_majorities(dead: str) -> None:
    """The status names the missing store of either configuration, and not the available one."""
    scene = Moving(locked=True)
    scene.lose(dead)
    assert (
        scene.stuck() == f"no quorum, because these stores are unavailable or run on other volumes than before: {dead}"
    )


def test_an_unlocked_target_does_not_count() -> None:
    """Before the lock only stable counts: its voter is available, so only an election is missing."""
    scene = Moving(locked=False)
    scene.lose("s1")
    assert scene.stuck() == "no leader, although a quorum of voters is available: s0"


def test_data_is_not_lost_while_a_locked_target_has_it() -> None:
    """A replica has caught up before its change is locked; without the lock it may be empty."""
    scene = Moving(locked=True)
    scene.come_back("s0", "v9")
    assert scene.stuck() == "no quorum, because these stores are unavailable or run on other volumes than before: s0"
    scene.come_back("s1", "v8")
    assert scene.stuck().startswith("no replica is left, because these stores run on other volumes")
    unlocked = Moving(locked=False)
    unlocked.come_back("s0", "v9")
    assert unlocked.stuck().startswith("no replica is left, because these stores run on other volumes")


def test_the_worst_outage_is_the_reason() -> None:
    """Lost data is reported before a missing quorum; Degraded has both."""
    scene = Scene(3, replicas=1)
    scene.status()
    scene.come_back("s0", "v9")
    scene.lose("s1")
    status = scene.status()
    assert (conditions(status)["Ready"], conditions(status)["Degraded"]) == (
        ("False", "DataLost"),
        ("True", "DataLost"),
    )
    assert "no quorum, because" in message(status, "Degraded")


def test_a_lost_store_degrades_also_while_replicas_are_replaced() -> None:
    """A lost store is reported while it holds replicas; scaling up alone does not degrade the table."""
    scene = Scene()
    for partition in range(PARTITIONS):
        stable = scene.snapshot().partition(partition).stable
        assert stable is not None
        scene.lead(partition, next(peer.store for peer in stable.peers if peer.store != "s0"))
    scene.status()
    scene.give_up("s0")
    scene.carry()
    status = scene.status()
    assert status.moving > 0
    assert conditions(status)["Degraded"] == ("True", "StoresLost")
    scene.finish_all()
    assert conditions(scene.status()) == WELL


def test_an_impossible_spec() -> None:
    """The table stays available, is not Ready in this generation, and reports why."""
    scene = Scene()
    scene.status()
    scene.change(replicas=9)
    status = scene.status(problem=IMPOSSIBLE)
    no = ("False", "NoFeasiblePlacement")
    assert conditions(status) == WELL | {
        "Ready": no,
        "Progressing": no,
        "Balanced": no,
        "Degraded": ("True", "NoFeasiblePlacement"),
    }
    assert message(status, "Degraded") == "not enough stores"
    assert message(status, "Ready") == (
        "generation 2 is not applied: not enough stores; the table is served with its previous spec"
    )
    assert (status.observed_generation, status.replicas) == (2, 3)


def test_the_worst_comes_first_and_nothing_is_left_out() -> None:
    """Degraded reports everything that is wrong, the worst first."""
    scene = Scene()
    scene.status()
    scene.metastore.txn(Txn(success=(Delete(KEYS.leader(TABLE, 3)),)))
    scene.loads = {"s1": load(problems={f"{TABLE}/4": "snapshot transfer stalled", "other.1/5": "not ours"})}
    status = scene.status(problem=IMPOSSIBLE)
    assert conditions(status)["Degraded"] == ("True", "NoLeader")
    words = message(status, "Degraded")
    assert words.startswith(f"1 of {PARTITIONS} partitions are unavailable: no leader, ")
    assert words.endswith(
        "; not enough stores; 1 partitions make no progress; partition 4: s1: snapshot transfer stalled"
    )
    assert [entry.partition for entry in status.stuck] == [3, 4]


def test_damaged_replicas() -> None:
    """Degraded names damaged replicas apart from stalled ones, and recovers when they are repaired."""
    scene = Scene()
    scene.status()
    damaged = (f"{TABLE}/4", "other.1/5")
    scene.loads = {
        "s1": load(problems={f"{TABLE}/4": "bad block", f"{TABLE}/2": "no room"}, damaged=damaged),
        "s2": load(problems={f"{TABLE}/4": "the state is in doubt"}, damaged=damaged),
    }
    status = scene.status()
    assert conditions(status)["Ready"] == ("True", "AsExpected")
    assert conditions(status)["Degraded"] == ("True", "ReplicaDamaged")
    assert message(status, "Degraded") == (
        "1 partitions have a replica with damaged or different rows; partition 4: s1: bad block; s2: the state is in "
        "doubt; the replica is rebuilt from the others if most of them have the same rows; 1 partitions make no "
        "progress; partition 2: s1: no room"
    )
    assert [(entry.partition, entry.reason) for entry in status.stuck][-1][0] == 4
    assert partition_statuses(scene.snapshot(), scene.loads)[4].reason == "s1: bad block; s2: the state is in doubt"
    scene.loads = {}
    assert conditions(scene.status())["Degraded"] == ("False", "AsExpected")


def test_a_table_that_cannot_be_created() -> None:
    """A table that cannot be created is not Ready for the same reason."""
    scene = Scene(led=False)
    for key in (KEYS.table(TABLE), *KEYS.of_table(TABLE)):
        scene.metastore.txn(Txn(success=(Delete(key, prefix=True),)))
    status = scene.status(problem=IMPOSSIBLE)
    assert conditions(status)["Ready"] == ("False", "NoFeasiblePlacement")
    assert conditions(status)["Balanced"] == ("False", "NoFeasiblePlacement")


def test_the_number_of_the_plan_outlives_the_metastore() -> None:
    """The plan number distinguishes a table whose keys are lost from one that was never created."""
    scene = Scene()
    assert scene.status().plan == 1
    for key in (KEYS.table(TABLE), *KEYS.of_table(TABLE)):
        scene.metastore.txn(Txn(success=(Delete(key, prefix=True),)))
    assert scene.status(problem=IMPOSSIBLE).plan == 1


@pytest.mark.parametrize("when", ["at rest", "under way", "not created"])
def test_paused(when: str) -> None:
    """Whether a paused table is balanced is unknown, unless a plan is unfinished."""
    scene = Scene()
    if when == "under way":
        scene.change(replicas=5)
        scene.carry(max_concurrent=20)
        assert conditions(scene.status(paused="spec.paused is true"))["Progressing"] == ("True", "Rebalancing")
        scene.finish_all()
    if when == "not created":
        for key in (KEYS.table(TABLE), *KEYS.of_table(TABLE)):
            scene.metastore.txn(Txn(success=(Delete(key, prefix=True),)))
    status = scene.status(paused="spec.paused is true")
    balanced = {"at rest": "Unknown", "under way": "False", "not created": "Unknown"}[when]
    assert conditions(status)["Progressing"] == ("False", "Paused")
    assert conditions(status)["Balanced"] == (balanced, "Paused")
    assert conditions(status)["Ready"][1] == ("Paused" if when == "not created" else "AsExpected")


def test_awaiting_approval() -> None:
    """A plan that awaits approval is no progress, and the table is not balanced until it is carried out."""
    scene = Scene(approval="Manual")
    scene.status()
    scene.change(replicas=5, approval="Manual")
    scene.carry()
    status = scene.status()
    waits = ("False", "AwaitingApproval")
    assert conditions(status) == WELL | {"Progressing": waits, "Balanced": waits}
    plan = scene.snapshot().plan
    assert plan is not None
    assert plan.head.state is PlanState.AWAITING_APPROVAL
    assert {entry.stage for entry in partition_statuses(scene.snapshot(), {})} == {"Stable"}


def load(**fields: Any) -> StoreLoad:
    return StoreLoad(replicas=1, leading=1, log_bytes=10, bytes_per_second=0, **fields)


def test_the_size_is_that_of_one_copy() -> None:
    """Every partition counts once, with or without a leader."""
    sizes = dict.fromkeys(range(PARTITIONS), 100) | {0: 50}
    assert Scene(led=False).status(sizes=sizes).bytes == 100 * PARTITIONS - 50


def test_a_part_of_the_size_is_not_the_size() -> None:
    """The table's size is absent while one partition's is unknown, so that it does not seem to shrink."""
    scene, sizes = Scene(), dict.fromkeys(range(PARTITIONS), 100)
    assert scene.status(sizes={0: 100}).bytes is None
    assert scene.status(sizes=sizes).bytes == 100 * PARTITIONS
    del sizes[PARTITIONS - 1]
    assert scene.status(sizes=sizes).bytes is None


def test_invalid_reports_are_ignored() -> None:
    """An invalid report of a store does not stop the operator."""
    values = {
        "s0": b"nonsense",
        "s1": encode(load(filling={f"{TABLE}/x": {"s2": 0.5}}, problems={TABLE: "?", f"{TABLE}/2": "full"})),
    }
    loads = Reports(KEYS, [KeyValue(KEYS.load(name), value, 1, 1, 1) for name, value in values.items()]).all()
    assert list(loads) == ["s1"]
    assert problems_of(loads, TABLE) == {2: "s1: full"}
    scene = Scene()
    scene.metastore.txn(Txn(success=(Put(f"{KEYS.leaders(TABLE)}x", b"nonsense"),)))
    assert partition_statuses(scene.snapshot(), loads)[2].reason == "s1: full"


def test_stages_and_progress_of_a_partition() -> None:
    """Pending is copied and then locked, planned waits, and the progress of copies is reported."""
    scene = Scene()
    scene.change(replicas=5)
    scene.carry()
    view = scene.snapshot().partition(0)
    assert view.pending is not None
    assert view.stable is not None
    coming = sorted({peer.store for peer in view.pending.last} - {peer.store for peer in view.stable.peers})
    loads = {"s1": load(filling={f"{TABLE}/0": {coming[0]: 1.0, coming[1]: 0.5}})}
    [shown, *_] = partition_statuses(scene.snapshot(), loads, blocked={1: "no room"})
    assert (shown.stage, shown.progress, len(shown.pending), shown.term) == ("CatchingUp", 75, 1, 3)
    assert "replicas 3 -> 5" in shown.reason
    assert partition_statuses(scene.snapshot(), loads, blocked={1: "no room"})[1].reason == "no room"
    scene.put(KEYS.partition(TABLE, 0).lock, Lock(token=view.pending_mod, term=3))
    [shown, *_] = partition_statuses(scene.snapshot(), loads)
    assert (shown.stage, shown.progress) == ("Locked", 99)
    for key in (KEYS.partition(TABLE, 0).lock, KEYS.partition(TABLE, 0).pending):
        scene.metastore.txn(Txn(success=(Delete(key),)))
    scene.put(KEYS.partition(TABLE, 0).planned, Planned(view.pending.last))
    [shown, *_] = partition_statuses(scene.snapshot(), loads)
    assert (shown.stage, shown.progress, len(shown.planned)) == ("Waiting", 100, 5)


def test_an_unreadable_key_keeps_the_last_figures() -> None:
    """A malformed key degrades the table, and its last figures stay."""
    scene = Scene()
    before = scene.status(FIRST)
    problem = Problem(Reason.MALFORMED_RECORD, "key x holds nonsense")
    status = problem_status(scene.table, problem, now=LATER)
    assert conditions(status) == WELL | {
        "Ready": ("False", "MalformedRecord"),
        "Available": ("Unknown", "MalformedRecord"),
        "Degraded": ("True", "MalformedRecord"),
    }
    assert status.partitions == before.partitions
    assert problem_status(Table.model_validate(scene.table.model_dump() | {"status": None}), problem, now=LATER)


def test_partition_statuses_share_objects() -> None:
    """Statuses of partitions share objects without a change of their values."""
    one, other = PeerStatus(store="a-1", role="Voter", replica=3), PeerStatus(store="a-2", role="Voter").lean()
    lean = one.model_copy().lean()
    assert (lean, lean.model_dump(), lean.model_copy(update={"replica": 4}).replica) == (one, one.model_dump(), 4)
    assert lean.model_fields_set is other.model_fields_set
    assert other.model_fields_set == {"store", "role", "replica"}
    shown = partition_statuses(Scene().snapshot(), {})
    peers = [peer for entry in shown for peer in entry.stable]
    assert len({id(peer) for peer in peers}) == len({peer.store for peer in peers})

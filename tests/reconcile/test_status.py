"""What users see of a table: counts, stages, conditions with their times."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evenkeel.metastore.api import Delete, KeyValue, Put, Txn
from evenkeel.model.conditions import Reason
from evenkeel.model.partitionassignment import PeerStatus
from evenkeel.model.table import Table, TableStatus
from evenkeel.protocol.records import GroupLoad, Leader, Lock, Planned, PlanState, StoreLoad, TableState, encode
from evenkeel.reconcile.partitions import Trouble, partition_statuses, problems_of, read_loads
from evenkeel.reconcile.status import table_status, troubled_status
from evenkeel.reconcile.wish import wish_of
from tests.reconcile.support import KEYS, PARTITIONS, TABLE, Cluster, conditions, message, table

FIRST, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
IMPOSSIBLE = Trouble(Reason.NO_FEASIBLE_PLACEMENT, "not enough stores")
WELL = {
    "Ready": ("True", "AsExpected"),
    "Progressing": ("False", "AsExpected"),
    "Balanced": ("True", "AsExpected"),
    "Degraded": ("False", "AsExpected"),
}


class Scene(Cluster):
    """A table as a resource, and as the metastore has it."""

    def __init__(self, stores: int = 5, *, led: bool = True, **spec: Any) -> None:
        super().__init__(stores)
        self.table = table(**spec)
        self.loads: dict[str, StoreLoad] = {}
        self.carry()
        for partition in range(PARTITIONS if led else 0):
            self.lead(partition)

    def carry(self, *, max_concurrent: int | None = None) -> None:
        """Reconcile the table as it is."""
        self.reconcile(msgspec.structs.replace(wish_of(self.table), max_concurrent=max_concurrent))

    def change(self, **spec: Any) -> None:
        """Have the user change the table."""
        changed = table(generation=self.table.metadata.generation + 1, **spec)
        self.table = changed.model_copy(update={"status": self.table.status})

    def lead(self, partition: int, store: str = "") -> None:
        stable = self.snapshot().partition(partition).stable
        assert stable is not None
        self.put(KEYS.leader(TABLE, partition), Leader(store=store or stable.peers[0].store, term=3))

    def look(self, now: str = FIRST, **known: Any) -> TableStatus:
        """Fold the status, and keep it."""
        snapshot = self.snapshot()
        partitions = partition_statuses(snapshot, self.loads)
        status = table_status(self.table, snapshot, partitions, loads=self.loads, now=now, **known)
        self.table = self.table.model_copy(update={"status": status})
        return status

    def finish_all(self) -> None:
        for partition in range(PARTITIONS):
            if self.snapshot().partition(partition).pending is not None:
                self.finish(partition)


def times(status: TableStatus) -> dict[str, str]:
    return {entry.type: entry.last_transition_time for entry in status.conditions}


def test_a_table_at_rest() -> None:
    """All is as expected, and the figures are those of the metastore."""
    scene = Scene()
    status = scene.look()
    assert conditions(status) == WELL
    assert (status.partitions, status.replicas, status.consensus_size) == (PARTITIONS, 3, 3)
    assert (status.moving, status.leaderless, status.under_replicated, status.stuck) == (0, 0, 0, ())
    plan = scene.snapshot().plan
    assert plan is not None
    assert (status.plan, status.plan_hash, status.observed_generation) == (1, plan.head.hash, 1)
    assert status.progress is not None
    assert (status.progress.percentage, status.progress.expected_at) == (100, None)


def test_looking_again_changes_nothing() -> None:
    """A status does not depend on when one looks, so that it is not written again and again."""
    scene = Scene()
    scene.change(replicas=5)
    scene.carry(max_concurrent=20)
    assert scene.look(FIRST) == scene.look(LATER)


def test_times_stay_where_nothing_changed() -> None:
    """Only a condition whose status changed has a new time."""
    scene = Scene()
    scene.look(FIRST)
    scene.change(replicas=5)
    scene.carry(max_concurrent=20)
    status = scene.look(LATER)
    assert times(status) == {"Ready": FIRST, "Progressing": LATER, "Balanced": LATER, "Degraded": FIRST}
    assert {entry.observed_generation for entry in status.conditions} == {2}


def test_a_rebalance() -> None:
    """Partitions on the move and those that wait for them are not balanced yet, and progress is counted."""
    scene = Scene()
    scene.look()
    scene.change(replicas=5)
    scene.carry(max_concurrent=20)
    status = scene.look()
    assert (status.moving, status.replicas, status.under_replicated) == (20, 3, PARTITIONS)
    assert conditions(status) == WELL | {"Progressing": ("True", "Rebalancing"), "Balanced": ("False", "Rebalancing")}
    assert message(status, "Progressing") == "plan 2: 0 of 70 partitions are where it wants them"
    stages = [entry.stage for entry in partition_statuses(scene.snapshot(), {})]
    assert (stages.count("CatchingUp"), stages.count("Waiting")) == (20, 50)
    scene.finish_all()
    status = scene.look(LATER)
    assert status.moving == 0
    assert conditions(status)["Balanced"] == ("False", "Rebalancing")
    assert status.progress is not None
    assert (status.progress.moves_done, status.progress.percentage) == (20, 28)
    assert (status.progress.started_at, status.progress.expected_at) == (FIRST, "2026-01-01T00:03:30Z")


def test_progress_counts_what_the_plan_changes() -> None:
    """A plan that concerns few partitions is not nearly done before it has begun."""
    scene = Scene()
    scene.put(KEYS.store_state("s0"), {"volume": "v0", "draining": True})
    scene.carry()
    status = scene.look()
    assert status.progress is not None
    assert (status.progress.moves_done, status.progress.moves_total) == (0, status.moving)
    assert 0 < status.moving < PARTITIONS


def test_a_table_that_is_created() -> None:
    """Before it is there, and until every partition has its first leader, it is on its way, and nothing is wrong."""
    scene = Scene(led=False)
    scene.put(KEYS.table(TABLE), wish_of(scene.table).record)
    creating = {"Ready": ("False", "Reconciling"), "Progressing": ("True", "Reconciling")}
    assert conditions(scene.look()) == WELL | creating | {"Balanced": ("False", "Reconciling")}
    ready = msgspec.structs.replace(wish_of(scene.table).record, state=TableState.READY)
    scene.put(KEYS.table(TABLE), ready)
    status = scene.look()
    assert conditions(status) == WELL | {"Ready": ("False", "Reconciling")}
    assert (status.leaderless, status.stuck) == (PARTITIONS, ())


def test_partitions_that_lose_their_leader() -> None:
    """Once a table was ready, a partition that nobody leads is what is wrong with it, since when it is."""
    scene = Scene()
    scene.look(FIRST)
    scene.metastore.txn(Txn(success=(Delete(KEYS.leader(TABLE, 3)),)))
    scene.look(LATER)
    status = scene.look("2026-01-01T00:02:00Z")
    assert conditions(status) == WELL | {"Ready": ("False", "QuorumLost"), "Degraded": ("True", "QuorumLost")}
    assert [(entry.partition, entry.stage, entry.since) for entry in status.stuck] == [(3, "Leaderless", LATER)]


def test_a_leader_whose_store_is_away_leads_nothing() -> None:
    """The key of a store that died stays until somebody else leads, and counts for nothing."""
    scene = Scene()
    scene.look()
    scene.lead(3, "s0")
    scene.metastore.txn(Txn(success=(Delete(KEYS.store("s0")),)))
    status = scene.look()
    assert partition_statuses(scene.snapshot(), {})[3].leader == ""
    assert conditions(status)["Degraded"] == ("True", "QuorumLost")
    assert "stores that hold replicas are away: s0" in message(status, "Degraded")
    assert status.under_replicated > 0


def test_a_lost_store_degrades_also_while_replicas_are_made_anew() -> None:
    """As long as a store that is away is counted on, that is said; scaling up alone degrades nothing."""
    scene = Scene()
    for partition in range(PARTITIONS):
        stable = scene.snapshot().partition(partition).stable
        assert stable is not None
        scene.lead(partition, next(peer.store for peer in stable.peers if peer.store != "s0"))
    scene.look()
    scene.metastore.txn(Txn(success=(Delete(KEYS.store("s0")),)))
    scene.put(KEYS.store_state("s0"), {"volume": "v0", "replace": True})
    scene.carry()
    status = scene.look()
    assert status.moving > 0
    assert conditions(status)["Degraded"] == ("True", "StoresLost")
    scene.finish_all()
    assert conditions(scene.look()) == WELL


def test_a_spec_that_cannot_be_had() -> None:
    """The table is as good as before, is not balanced, and says why."""
    scene = Scene()
    scene.look()
    scene.change(replicas=9)
    status = scene.look(trouble=IMPOSSIBLE)
    no = ("False", "NoFeasiblePlacement")
    assert conditions(status) == WELL | {
        "Progressing": no,
        "Balanced": no,
        "Degraded": ("True", "NoFeasiblePlacement"),
    }
    assert message(status, "Degraded") == "not enough stores"
    assert (status.observed_generation, status.replicas) == (2, 3)


def test_the_worst_comes_first_and_nothing_is_left_out() -> None:
    """One condition tells all that is wrong."""
    scene = Scene()
    scene.look()
    scene.metastore.txn(Txn(success=(Delete(KEYS.leader(TABLE, 3)),)))
    scene.loads = {"s1": load(problems={f"{TABLE}/4": "it gets no fuller", "other.1/5": "not ours"})}
    status = scene.look(trouble=IMPOSSIBLE)
    assert conditions(status)["Degraded"] == ("True", "QuorumLost")
    assert message(status, "Degraded") == (
        "1 partitions have no leader; not enough stores; 1 partitions do not get on; partition 4: s1: it gets no fuller"
    )
    assert [entry.partition for entry in status.stuck] == [3, 4]


def test_damaged_replicas() -> None:
    """Degraded names who is damaged and what becomes of it, apart from what is merely slow; healed, it is over."""
    scene = Scene()
    scene.look()
    damaged = (f"{TABLE}/4", "other.1/5")
    scene.loads = {
        "s1": load(problems={f"{TABLE}/4": "bad block", f"{TABLE}/2": "no room"}, damaged=damaged),
        "s2": load(problems={f"{TABLE}/4": "the state is in doubt"}, damaged=damaged),
    }
    status = scene.look()
    assert conditions(status)["Ready"] == ("True", "AsExpected")
    assert conditions(status)["Degraded"] == ("True", "ReplicaDamaged")
    assert message(status, "Degraded") == (
        "1 partitions have a replica whose rows are damaged or differ; partition 4: s1: bad block; s2: the state is in "
        "doubt; it is built anew from the others, where most of them have the same rows; 1 partitions do not get on; "
        "partition 2: s1: no room"
    )
    assert [(entry.partition, entry.reason) for entry in status.stuck][-1][0] == 4
    assert partition_statuses(scene.snapshot(), scene.loads)[4].reason == "s1: bad block; s2: the state is in doubt"
    scene.loads = {}
    assert conditions(scene.look())["Degraded"] == ("False", "AsExpected")


def test_a_table_that_cannot_be_created() -> None:
    """It is not ready for the same reason."""
    scene = Scene(led=False)
    for key in (KEYS.table(TABLE), *KEYS.of_table(TABLE)):
        scene.metastore.txn(Txn(success=(Delete(key, prefix=True),)))
    status = scene.look(trouble=IMPOSSIBLE)
    assert conditions(status)["Ready"] == ("False", "NoFeasiblePlacement")
    assert conditions(status)["Balanced"] == ("False", "NoFeasiblePlacement")


@pytest.mark.parametrize("when", ["at rest", "under way", "not created"])
def test_paused(when: str) -> None:
    """Nobody can tell whether a paused table is balanced, unless a plan was left unfinished."""
    scene = Scene()
    if when == "under way":
        scene.change(replicas=5)
        scene.carry(max_concurrent=20)
        assert conditions(scene.look(paused="spec.paused is true"))["Progressing"] == ("True", "Rebalancing")
        scene.finish_all()
    if when == "not created":
        for key in (KEYS.table(TABLE), *KEYS.of_table(TABLE)):
            scene.metastore.txn(Txn(success=(Delete(key, prefix=True),)))
    status = scene.look(paused="spec.paused is true")
    balanced = {"at rest": "Unknown", "under way": "False", "not created": "Unknown"}[when]
    assert conditions(status)["Progressing"] == ("False", "Paused")
    assert conditions(status)["Balanced"] == (balanced, "Paused")
    assert conditions(status)["Ready"][1] == ("Paused" if when == "not created" else "AsExpected")


def test_awaiting_approval() -> None:
    """A plan that waits is no progress, and the table is not balanced until it was carried out."""
    scene = Scene(approval="Manual")
    scene.look()
    scene.change(replicas=5, approval="Manual")
    scene.carry()
    status = scene.look()
    waits = ("False", "AwaitingApproval")
    assert conditions(status) == WELL | {"Progressing": waits, "Balanced": waits}
    plan = scene.snapshot().plan
    assert plan is not None
    assert plan.head.state is PlanState.AWAITING_APPROVAL
    assert {entry.stage for entry in partition_statuses(scene.snapshot(), {})} == {"Stable"}


def load(**fields: Any) -> StoreLoad:
    return StoreLoad(replicas=1, leading=1, log_bytes=10, bytes_per_second=0, **fields)


def test_the_size_is_what_leaders_report() -> None:
    """One copy of each partition is counted."""
    scene = Scene()
    groups = (GroupLoad(0, True, 100, 0), GroupLoad(1, False, 50, 0))
    scene.loads = {"s0": load(tables={TABLE: groups}), "s1": load(tables={TABLE: groups[1:], "other.1": groups})}
    assert scene.look().bytes == 100


def test_reports_that_make_no_sense_are_passed_over() -> None:
    """What a store writes cannot stop the operator."""
    values = {
        "s0": b"nonsense",
        "s1": encode(load(filling={f"{TABLE}/x": {"s2": 0.5}}, problems={TABLE: "?", f"{TABLE}/2": "full"})),
    }
    loads = read_loads([KeyValue(KEYS.load(name), value, 1, 1, 1) for name, value in values.items()], KEYS)
    assert list(loads) == ["s1"]
    assert problems_of(loads, TABLE) == {2: "s1: full"}
    scene = Scene()
    scene.metastore.txn(Txn(success=(Put(f"{KEYS.leaders(TABLE)}x", b"nonsense"),)))
    assert partition_statuses(scene.snapshot(), loads)[2].reason == "s1: full"


def test_stages_and_progress_of_a_partition() -> None:
    """What is pending is copied, then frozen; what is planned waits; and how far the copies are is told."""
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


def test_what_cannot_be_read_leaves_the_rest_as_it_was() -> None:
    """A damaged key degrades the table, and its last figures stay."""
    scene = Scene()
    before = scene.look(FIRST)
    trouble = Trouble(Reason.MALFORMED_RECORD, "key x holds nonsense")
    status = troubled_status(scene.table, trouble, now=LATER)
    assert conditions(status) == WELL | {"Degraded": ("True", "MalformedRecord")}
    assert status.partitions == before.partitions
    assert troubled_status(Table.model_validate(scene.table.model_dump() | {"status": None}), trouble, now=LATER)


def test_what_there_are_thousands_of_is_lean() -> None:
    """Statuses of partitions share what they have in common, and are what they would be otherwise."""
    one, other = PeerStatus(store="a-1", role="Voter", replica=3), PeerStatus(store="a-2", role="Voter").lean()
    lean = one.model_copy().lean()
    assert (lean, lean.model_dump(), lean.model_copy(update={"replica": 4}).replica) == (one, one.model_dump(), 4)
    assert lean.model_fields_set is other.model_fields_set
    assert other.model_fields_set == {"store", "role", "replica"}
    shown = partition_statuses(Scene().snapshot(), {})
    peers = [peer for entry in shown for peer in entry.stable]
    assert len({id(peer) for peer in peers}) == len({peer.store for peer in peers})

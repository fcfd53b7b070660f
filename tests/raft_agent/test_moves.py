"""Replica changes end to end: agents of several stores, modelled raft, one metastore."""

from __future__ import annotations

import pytest

from evenkeel.metastore.metastore_api import Get, Txn
from evenkeel.protocol.records import Retarget, shape
from evenkeel_raft.agent.agent_settings import AgentSettings
from evenkeel_raft.shared.raft_groups import Partition
from tests.protocol.support import targets
from tests.raft_agent.cluster import P0, TABLE, Cluster, puts, writes

MODES = list(Retarget)


async def ready(
    names: str, row: str, mode: Retarget = Retarget.ADJUST, *, settings: AgentSettings | None = None
) -> Cluster:
    """Return a cluster whose only partition runs on its initial stores."""
    cluster = Cluster(names, settings=settings)
    await cluster.create(row, mode=mode)
    await cluster.until(lambda: cluster.settled(row) and cluster.leader() != "")
    return cluster


async def test_what_is_logged_names_table_partition_and_plan(caplog: pytest.LogCaptureFixture) -> None:
    """Every step of a change is logged with its table, partition and plan."""
    caplog.set_level("INFO", logger="evenkeel_raft.agent.leader_driver")
    async with await ready("a b c d", "a b c", Retarget.ADJUST) as cluster:
        caplog.clear()
        await cluster.retarget("b c d")
        await cluster.until(lambda: cluster.settled("b c d"))
    steps = [record for record in caplog.records if record.name == "evenkeel_raft.agent.leader_driver"]
    about = {tuple(vars(record)[field] for field in ("table", "partition", "plan")) for record in steps}
    assert about == {("orders", 0, 2)}
    assert {"wrote lock", "wrote switch"} <= {record.getMessage() for record in steps}


@pytest.mark.parametrize("mode", MODES)
async def test_three_five_three(mode: Retarget) -> None:
    """Replicas are added and removed, and removed ones leave nothing behind."""
    async with await ready("a b c d e", "a b c", mode) as cluster:
        await cluster.retarget("a b c d e")
        await cluster.until(lambda: cluster.settled("a b c d e"))
        await cluster.retarget("c d e")
        await cluster.until(lambda: cluster.settled("c d e"))
        stable = cluster.view().stable
        assert stable is not None
        assert not stable.genesis


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a", "a b c"),
        ("a b c", "d e f"),
        ("a b c", "b c d"),
        ("a b c", "a b c d*"),
        ("a b c d*", "a b d"),
        ("a b c", "a b c*"),
        ("a b c", "a"),
        ("a", "b"),
    ],
)
async def test_any_change_completes(before: str, after: str) -> None:
    """Changes of one or two steps, of voters or learners, with or without the leader among those removed."""
    async with await ready("a b c d e f", before) as cluster:
        await cluster.retarget(after)
        await cluster.until(lambda: cluster.settled(after))
        await cluster.until(lambda: cluster.reported() is not None and cluster.reported().store == cluster.leader())  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", MODES)
async def test_a_wiped_store_is_another_replica(mode: Retarget) -> None:
    """A store that lost its disk rejoins as a new replica under the same name."""
    async with await ready("a b c", "a b c", mode) as cluster:
        await cluster["c"].kill()
        cluster["c"].wipe()
        cluster["c"].start()
        await cluster.until(lambda: cluster["c"].agent.status().state == "following")
        await cluster.pass_time(2)
        assert cluster.holders() == {"a", "b"}, "nothing is started for the volume that is gone"
        await cluster.retarget("a b c@2", gone=lambda peer: peer.volume == "c-1")
        await cluster.until(lambda: cluster.settled("a b c@2"))
        assert cluster["c"].groups.running()[P0] == ("c", 2)


async def test_adjust_in_mid_catch_up() -> None:
    """The operator overwrites pending; the leader stops copying to removed replicas and keeps those in both targets."""
    async with await ready("a b c d e f", "a b c") as cluster:
        cluster.network.held = {"d", "e", "f"}
        await cluster.retarget("a d e")
        await cluster.until(lambda: cluster.holders() >= {"d", "e"})
        await cluster.pass_time(5)
        kept = cluster["d"].groups.running()[P0]
        await cluster.retarget("a d f")
        assert cluster.view().planned is None
        await cluster.until(lambda: cluster.holders() == {"a", "b", "c", "d", "f"})
        assert cluster["d"].groups.running()[P0] == kept
        cluster.network.held = set()
        await cluster.until(lambda: cluster.settled("a d f"))
        assert cluster["d"].groups.running()[P0] == kept


async def test_cancel_in_mid_catch_up() -> None:
    """The operator writes planned; the leader cancels the catch-up and makes planned pending."""
    async with await ready("a b c d e", "a b c", Retarget.CANCEL) as cluster:
        cluster.network.held = {"d", "e"}
        await cluster.retarget("a b d")
        await cluster.until(lambda: "d" in cluster.holders())
        await cluster.pass_time(5)
        await cluster.retarget("a b e")
        assert cluster.view().planned is not None
        await cluster.until(lambda: cluster.view().planned is None)
        assert cluster.view().pending is not None
        assert shape(cluster.view().pending.last) == shape(targets("a b e"))  # type: ignore[union-attr]
        await cluster.until(lambda: cluster.holders() == {"a", "b", "c", "e"})
        cluster.network.held = set()
        await cluster.until(lambda: cluster.settled("a b e"))


async def test_queue_in_mid_catch_up() -> None:
    """Planned waits until the current change is complete."""
    async with await ready("a b c d e", "a b c", Retarget.QUEUE) as cluster:
        cluster.network.held = {"d"}
        await cluster.retarget("a b d")
        await cluster.retarget("a b e")
        await cluster.pass_time(60)
        assert cluster.view().planned is not None
        assert cluster.holders() == {"a", "b", "c", "d"}
        cluster.network.held = set()
        await cluster.until(lambda: cluster.settled("a b e"))
        assert "d" not in cluster.holders()


@pytest.mark.parametrize("mode", MODES)
async def test_retarget_once_locked(mode: Retarget) -> None:
    """A locked change is completed; planned follows with the switch."""
    async with await ready("a b c d e", "a b c", mode) as cluster:
        leader = cluster[cluster.leader()]
        leader.way.hold = puts("stable")
        await cluster.retarget("a b c d")
        await cluster.until(lambda: leader.way.holding == 1)
        assert cluster.view().lock is not None
        await cluster.retarget("a b c e")
        assert cluster.view().planned is not None
        leader.way.hold = lambda _: False
        leader.way.release()
        await cluster.until(lambda: cluster.settled("a b c e"))


@pytest.mark.parametrize("kind", ["pending.lock", "stable"])
async def test_the_leader_dies_in_between(kind: str) -> None:
    """The next leader continues from the state of the metastore and raft's log."""
    async with await ready("a b c d", "a b c") as cluster:
        first = cluster.leader()
        cluster[first].way.hold = puts(kind)
        await cluster.retarget("a b c d")
        await cluster.until(lambda: cluster[first].way.holding == 1)
        await cluster[first].kill()
        await cluster.until(lambda: shape(cluster.view().stable.peers) == shape(targets("a b c d")))  # type: ignore[union-attr]
        assert cluster.leader() != first
        cluster[first].start()
        await cluster.until(lambda: cluster.settled("a b c d"))


async def test_a_target_that_stops_responding_is_unlocked() -> None:
    """If the target does not respond, the leader unlocks so that the operator can retarget, and retries later."""
    async with await ready("a b c d", "a b c") as cluster:
        leader = cluster[cluster.leader()]
        leader.way.hold = puts("pending.lock")
        await cluster.retarget("a b d")
        await cluster.until(lambda: leader.way.holding == 1)
        cluster.network.cut = {"d"}
        leader.way.hold = lambda _: False
        leader.way.release()
        await cluster.until(lambda: leader.agent.status().counters.transactions["unlock", "done"] == 1)
        assert cluster.view().lock is None
        assert cluster.view().pending is not None
        cluster.network.cut = set()
        await cluster.until(lambda: cluster.settled("a b d"))


async def test_a_target_that_comes_and_goes_is_not_locked_all_the_time() -> None:
    """A target that fails whenever it is locked is retried with backoff and reported as a problem."""
    async with await ready("a b c d", "a b c") as cluster:
        leader = cluster[cluster.leader()]

        def tease(txn: Txn) -> bool:
            if writes("pending.lock")(txn):
                cluster.network.cut = {"d"} if puts("pending.lock")(txn) else set()
            return False

        leader.way.hold = tease
        await cluster.retarget("a b d")
        await cluster.pass_time(60)
        assert 7 <= leader.agent.status().counters.transactions["unlock", "done"] <= 14
        assert "voters of the target did not respond" in leader.agent.status().problems[P0]
        leader.way.hold = lambda _: False
        cluster.network.cut = set()
        await cluster.until(lambda: cluster.settled("a b d"))


async def test_an_empty_final_entry_heals_a_lost_switch() -> None:
    """If raft already runs the target, the switch still follows."""
    async with await ready("a b c d", "a b c") as cluster:
        await cluster.retarget("a b c d")
        await cluster.until(lambda: cluster.settled("a b c d"))
        stable = cluster.view().stable
        assert stable is not None
        await cluster.retarget("a b c")
        for store in cluster.stores.values():
            store.way.drop = puts("stable")
        await cluster.pass_time(20)
        assert shape(cluster.view().stable.peers) == shape(targets("a b c d"))  # type: ignore[union-attr]
        for store in cluster.stores.values():
            store.way.drop = lambda _: False
        await cluster.until(lambda: cluster.settled("a b c"))


async def test_a_leader_that_leaves_hands_over_first() -> None:
    """A leader that is no voter of the target hands over to a voter of both sets before the group becomes joint."""
    async with await ready("a b c d", "a b c") as cluster:
        leaving = cluster.leader()
        staying = sorted({"a", "b", "c"} - {leaving})
        row = " ".join([*staying, "d"])
        await cluster.retarget(row)
        await cluster.until(lambda: cluster.settled(row))
        assert cluster[leaving].agent.status().counters.transfers["change"] == 1
        assert cluster[leaving].agent.status().counters.proposals["final"] == 0


async def test_several_tables_move_side_by_side() -> None:
    """Partitions of several tables change concurrently."""
    async with Cluster("a b c d") as cluster:
        await cluster.started()
        for table in ("orders.1", "items.2"):
            await cluster.create(*["a b c"] * 4, table=table)
        partitions = [Partition(table, p) for table in ("orders.1", "items.2") for p in range(4)]
        await cluster.until(lambda: all(cluster.settled("a b c", p) for p in partitions))
        for partition in partitions:
            await cluster.retarget("b c d", partition=partition)
        await cluster.until(lambda: all(cluster.settled("b c d", p) for p in partitions))
        assert [partition for partition in partitions if cluster.reported(partition) is None] == []


async def test_a_read_counts_for_the_term_it_was_sent_in() -> None:
    """A leader that lost and regained leadership during its read reads again."""
    async with await ready("a b c", "a b c") as cluster:
        one, other = (cluster[name] for name in "abc" if name != cluster.leader())
        one.way.hold = reads
        assert cluster.network.elect((one.name, 1), P0)
        await cluster.until(lambda: one.way.holding == 1)
        for store in (other, one):
            assert cluster.network.elect((store.name, 1), P0)
        before = sum(map(reads, one.way.txns))
        one.way.hold = lambda _: False
        one.way.release()
        await cluster.pass_time(1)
        assert sum(map(reads, one.way.txns)) == before + 1


def reads(txn: Txn) -> bool:
    """Whether a transaction only reads."""
    return all(isinstance(op, Get) for op in txn.success)


async def test_a_thousand_new_leaders_read_together() -> None:
    """When the store that led nearly everything fails, its successors read and report in few round trips."""
    async with Cluster("a b c") as cluster:
        await cluster.create(*["a b c"] * 1000)
        partitions = [Partition(TABLE, p) for p in range(1000)]
        await cluster.until(lambda: all(cluster.reported(p) is not None for p in partitions))
        orphans = [p for p in partitions if cluster.leader(p) == "a"]
        assert len(orphans) > 500
        before = {name: len(cluster[name].way.txns) for name in "bc"}
        await cluster["a"].kill()
        await cluster.until(lambda: all(cluster.reported(p).store != "a" for p in partitions), seconds=5)  # type: ignore[union-attr]
        made = [txn for name in "bc" for txn in cluster[name].way.txns[before[name] :]]
        assert len([txn for txn in made if not writes("leaders")(txn)]) <= len(orphans) / 25 + 4
        assert len([txn for txn in made if writes("leaders")(txn)]) <= len(orphans) / 60 + 4


@pytest.mark.parametrize("mode", [Retarget.ADJUST, Retarget.CANCEL])
async def test_a_new_target_resets_the_backoff(mode: Retarget) -> None:
    """Copies to removed replicas stop within a second, whatever failed before."""
    async with await ready("a b c d e", "a b c", mode) as cluster:
        cluster.network.held = {"d"}
        await cluster.retarget("a b c d")
        leader = cluster[cluster.leader()]
        await cluster.until(lambda: leader.groups.leading(P0).applied.staged != ())  # type: ignore[union-attr]
        leader.groups.refuse_proposals = True
        await cluster.retarget("a b c e")
        await cluster.until(lambda: leader.agent.status().counters.failures["propose"] > 8, seconds=300)
        leader.groups.refuse_proposals = False
        await cluster.retarget("a b c")
        await cluster.pass_time(1)
        assert leader.groups.leading(P0).applied.staged == ()  # type: ignore[union-attr]


async def test_other_stores_partitions_are_skipped() -> None:
    """Partitions that do not name the store are not tracked, read or started."""
    async with Cluster("a b c d") as cluster:
        await cluster.started()
        await cluster.create("a b c", "b c d", "a b c")
        await cluster.until(lambda: cluster.settled("a b c") and cluster.settled("b c d", Partition(TABLE, 1)))
        status = cluster["d"].agent.status()
        assert (status.partitions, status.replicas) == (1, 1)
        assert status.counters.skipped > 0
        await cluster.retarget("b c d")
        await cluster.until(lambda: cluster.settled("b c d"))
        assert cluster["a"].agent.status().partitions == 1
        assert cluster["d"].agent.status().partitions == 2

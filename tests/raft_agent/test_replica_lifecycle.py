"""When replicas are started and deleted, and when they must not be."""

from __future__ import annotations

from evenkeel.errors import DisconnectedError
from evenkeel.metastore.metastore_api import Delete, Txn
from evenkeel.protocol.records import Stable
from evenkeel_raft.errors import DiskFullError
from tests.protocol.support import KEYS, peers
from tests.raft_agent.cluster import P0, Cluster, puts
from tests.raft_agent.test_moves import ready


async def test_nothing_starts_before_the_table_is_ready() -> None:
    """The keys of a table that is being created are not acted on."""
    async with Cluster("a b c") as cluster:
        await cluster.started()
        await cluster.create("a b c", ready=False)
        await cluster.pass_time(40)
        assert cluster.holders() == set()
        await cluster.make_ready()
        await cluster.until(lambda: cluster.settled("a b c"), seconds=2)


async def test_genesis_starts_with_its_configuration_and_others_empty() -> None:
    """Genesis replicas can elect a leader; later ones start empty and wait for a snapshot."""
    async with await ready("a b c d", "a b c") as cluster:
        assert all(cluster[name].disk.replicas[P0].base_configuration is not None for name in "abc")
        cluster.network.held = {"d"}
        await cluster.retarget("a b c d")
        await cluster.until(lambda: "d" in cluster.holders())
        assert cluster["d"].disk.replicas[P0].base_configuration is None


async def test_a_replica_that_was_held_is_never_started_again() -> None:
    """The votes of a deleted replica are lost, so an outdated list must not start it again."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster["c"].kill()
        del cluster["c"].disk.replicas[P0]
        cluster["c"].start()
        await cluster.pass_time(40)
        assert cluster.holders() == {"a", "b"}


async def test_absence_is_not_exclusion() -> None:
    """A replica whose partition has no keys stays, and no leader is asked."""
    async with await ready("a b c", "a b c") as cluster:
        own = KEYS.partition(*P0)
        await cluster.metastore.txn(Txn(success=(Delete(own.stable), Delete(own.trigger))))
        await cluster.pass_time(60)
        assert cluster.holders() == {"a", "b", "c"}
        assert [store.groups.asked for store in cluster.stores.values()] == [[], [], []]


async def test_lists_alone_delete_nothing() -> None:
    """A replica that stable excludes but its leader does not stays, and is reported as a problem."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster.put(KEYS.partition(*P0).stable, Stable(peers("a1 b1")))
        await cluster.pass_time(60)
        assert cluster.holders() == {"a", "b", "c"}
        asked = cluster["c"].groups.asked
        assert asked[0] == (P0, ("c", 1), ("a", "b"))
        assert 6 < len(asked) < 14, "asked again and again, ever more slowly"
        assert "no leader confirmed its removal" in cluster["c"].agent.status().problems[P0]


async def test_the_leader_is_asked_only_after_a_read() -> None:
    """The watch may be outdated: if a read of the keys names the replica, no leader is asked."""
    async with await ready("a b c", "a b c") as cluster:
        store = cluster["c"]
        store.way.hold = lambda txn: not txn.compares
        await cluster.put(KEYS.partition(*P0).stable, Stable(peers("a1 b1")))
        await cluster.until(lambda: store.way.holding == 1)
        await cluster.put(KEYS.partition(*P0).stable, Stable(peers("a1 b1 c1")))
        store.way.hold = lambda _: False
        store.way.release()
        await cluster.pass_time(40)
        assert store.groups.asked == []
        assert store.agent.status().counters.reads > 0


async def test_a_store_that_was_down_deletes_when_it_returns() -> None:
    """A restarted store reads the keys and asks the leader before it deletes."""
    async with await ready("a b c d", "a b c") as cluster:
        await cluster["c"].kill()
        await cluster.retarget("a b d")
        await cluster.until(lambda: cluster.view().pending is None)
        assert cluster.holders() == {"a", "b", "c", "d"}
        cluster["c"].start()
        await cluster.until(lambda: cluster.settled("a b d"))
        assert cluster["c"].agent.status().counters.deletions == 1


async def test_a_partitioned_leader_confirms_nothing() -> None:
    """Nothing is deleted without a leader that a quorum confirms."""
    async with await ready("a b c d", "a b c") as cluster:
        await cluster["c"].kill()
        await cluster.retarget("a b d")
        await cluster.until(lambda: cluster.view().pending is None)
        cluster.network.cut = {"a", "b", "d"}
        cluster["c"].start()
        await cluster.pass_time(30)
        assert "c" in cluster.holders()
        cluster.network.cut = set()
        await cluster.until(lambda: cluster.settled("a b d"))


async def test_a_failed_start_is_retried() -> None:
    """A start that fails is reported after some attempts, and succeeds once there is space."""
    async with Cluster("a b c") as cluster:
        cluster["c"].groups.failing = DiskFullError("no room")
        await cluster.create("a b c")
        await cluster.until(lambda: "no room" in cluster["c"].agent.status().problems.get(P0, ""))
        assert cluster["c"].agent.status().counters.failures["start"] >= 6
        cluster["c"].groups.failing = None
        await cluster.until(lambda: cluster.settled("a b c"))
        assert cluster["c"].agent.status().problems == {}


async def test_a_failed_deletion_is_retried() -> None:
    """A deletion is retried until the state machine is connected."""
    async with await ready("a b c d", "a b c") as cluster:
        cluster["c"].groups.failing = DisconnectedError("the store is not connected")
        await cluster.retarget("a b d")
        await cluster.until(lambda: cluster["c"].agent.status().counters.failures["delete"] == 2)
        cluster["c"].groups.failing = None
        await cluster.until(lambda: cluster.settled("a b d"))


async def test_a_rejected_proposal_is_retried() -> None:
    """A rejected proposal is reported with its reason, retried with backoff, and finally succeeds."""
    async with await ready("a b c d", "a b c") as cluster:
        leader = cluster[cluster.leader()]
        leader.groups.refuse_proposals = True
        await cluster.retarget("a b c d")
        await cluster.pass_time(100)
        assert "raft rejected a configuration proposal (stage)" in leader.agent.status().problems[P0]
        assert 7 < leader.agent.status().counters.failures["propose"] < 16
        leader.groups.refuse_proposals = False
        await cluster.until(lambda: cluster.settled("a b c d"))


async def test_transactions_in_flight_are_bounded() -> None:
    """The number of concurrent transactions is limited for any number of partitions."""
    async with Cluster("a b c d") as cluster:
        await cluster.create(*["a b c"] * 100)
        partitions = [P0._replace(partition=number) for number in range(100)]
        await cluster.until(lambda: all(cluster.settled("a b c", p) for p in partitions))
        for store in cluster.stores.values():
            store.way.hold = puts("pending.lock")
        for partition in partitions:
            await cluster.retarget("a b c d", partition=partition)
        await cluster.pass_time(5)
        held = [store.way.holding for store in cluster.stores.values()]
        assert max(held) == 16
        for store in cluster.stores.values():
            store.way.hold = lambda _: False
            store.way.release()
        await cluster.until(lambda: all(cluster.settled("a b c d", p) for p in partitions))


async def test_a_group_with_a_change_stays_awake() -> None:
    """The leader keeps its group awake until the change is complete."""
    async with await ready("a b c d", "a b c") as cluster:
        cluster.network.held = {"d"}
        leader = cluster[cluster.leader()]
        assert leader.groups.awake == set()
        await cluster.retarget("a b c d")
        await cluster.until(lambda: leader.groups.awake == {P0})
        cluster.network.held = set()
        await cluster.until(lambda: cluster.settled("a b c d") and leader.groups.awake == set())

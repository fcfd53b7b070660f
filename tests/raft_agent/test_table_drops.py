"""Dropped tables leave nothing behind, and stores keep their promise."""

from __future__ import annotations

from evenkeel.errors import DisconnectedError
from evenkeel.protocol.records import Tombstone, decode
from evenkeel_raft.errors import DiskFullError
from evenkeel_raft.shared.raft_groups import Partition
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import P0, TABLE, Cluster, puts
from tests.raft_agent.test_moves import ready


def waiting(cluster: Cluster) -> set[str]:
    """Stores that the tombstone waits for."""
    kv = cluster.now(KEYS.tombstone(TABLE))
    return set() if kv is None else {store for store, _ in decode(Tombstone, kv.value, key=kv.key).waiting}


def left_over(cluster: Cluster) -> list[str]:
    return [kv.key for kv in cluster.mvcc.range(KEYS.root).kvs if f"/{TABLE}" in kv.key]


async def test_a_drop_leaves_nothing() -> None:
    """A drop leaves neither keys nor replicas on any store, whatever is in progress."""
    async with Cluster("a b c d") as cluster:
        await cluster.create(*["a b c"] * 20)
        await cluster.create("a b c", table="items.2")
        partitions = [Partition(TABLE, number) for number in range(20)]
        await cluster.until(lambda: all(cluster.reported(p) is not None for p in partitions))
        for partition in partitions[:10]:
            await cluster.retarget("b c d", partition=partition)
        await cluster.pass_time(0.2)
        await cluster.drop()
        await cluster.until(lambda: not waiting(cluster))
        assert await cluster.remove_tombstone()
        await cluster.pass_time(60)
        assert left_over(cluster) == []
        assert [partition for partition in partitions if cluster.holders(partition)] == []
        assert cluster.settled("a b c", Partition("items.2", 0))


async def test_a_start_in_progress_is_undone_before_the_store_confirms() -> None:
    """If a tombstone overtakes a start, the replica is deleted before the store confirms."""
    async with Cluster("a b c") as cluster:
        await cluster.started()
        cluster["c"].groups.starting.clear()
        await cluster.create("a b c")
        await cluster.until(lambda: cluster.holders() == {"a", "b"})
        await cluster.drop()
        await cluster.until(lambda: waiting(cluster) == {"c"})
        await cluster.pass_time(40)
        assert waiting(cluster) == {"c"}
        cluster["c"].groups.starting.set()
        await cluster.until(lambda: not waiting(cluster))
        assert cluster.holders() == set()
        assert cluster["c"].groups.destroyed == [(P0, ("c", 1))]


async def test_nothing_of_it_is_started_again() -> None:
    """An assignment watch that lags behind the tombstone starts nothing."""
    async with await ready("a b c d", "a b c") as cluster:
        late = cluster["d"]
        late.way.blind()
        await cluster.retarget("a b c d")
        await cluster.pass_time(1)
        await cluster.drop()
        await cluster.until(lambda: waiting(cluster) == {"d"})
        late.way.unblind()
        await cluster.until(lambda: not waiting(cluster))
        await cluster.pass_time(40)
        assert cluster.holders() == set()
        assert late.agent.status().partitions == 0


async def test_a_store_that_was_down_confirms_when_it_returns() -> None:
    """The tombstone waits for a store that is down."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster["b"].kill()
        await cluster.drop()
        await cluster.until(lambda: waiting(cluster) == {"b"})
        cluster["b"].start()
        await cluster.until(lambda: not waiting(cluster))
        assert cluster.holders() == set()


async def test_a_store_that_cannot_delete_does_not_confirm() -> None:
    """The tombstone waits until the state machine can delete its data."""
    async with await ready("a b c", "a b c") as cluster:
        cluster["c"].groups.failing = DisconnectedError("the store is not connected")
        await cluster.drop()
        await cluster.until(lambda: waiting(cluster) == {"c"})
        await cluster.pass_time(40)
        assert waiting(cluster) == {"c"}
        cluster["c"].groups.failing = None
        await cluster.until(lambda: not waiting(cluster))
        assert cluster.holders() == set()


async def test_stores_that_confirm_at_the_same_time() -> None:
    """A store whose confirmation conflicts with another one confirms again at once."""
    async with await ready("a b c d", "a b c") as cluster:
        cluster["d"].way.hold = puts("tables.dropped")
        await cluster.drop()
        await cluster.until(lambda: waiting(cluster) == {"d"} and cluster["d"].way.holding == 1)
        await cluster.turn()
        cluster["d"].way.hold = lambda _: False
        cluster["d"].way.release()
        await cluster.until(lambda: not waiting(cluster), seconds=1)


async def test_a_store_without_replicas_confirms_too() -> None:
    """A store on the tombstone confirms although it never had a replica of the table."""
    async with await ready("a b c d", "a b c") as cluster:
        await cluster.drop()
        await cluster.until(lambda: not waiting(cluster))
        assert cluster["d"].groups.destroyed == []


async def test_a_table_that_never_started_is_no_problem_once_it_is_dropped() -> None:
    """Problems of a dropped table are cleared."""
    async with Cluster("a b c") as cluster:
        cluster["c"].groups.failing = DiskFullError("no room")
        await cluster.create("a b c")
        await cluster.until(lambda: P0 in cluster["c"].agent.status().problems)
        await cluster.drop()
        await cluster.until(lambda: not waiting(cluster))
        await cluster.until(lambda: cluster["c"].agent.status().problems == {}, seconds=5)

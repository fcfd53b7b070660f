"""Orders to lead a partition from a given store."""

from __future__ import annotations

from evenkeel.protocol.records import LeaderOrder
from evenkeel_raft.shared.raft_groups import Partition
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import P0, Cluster
from tests.raft_agent.test_moves import ready

KEY = KEYS.leader_target(*P0)


async def order(cluster: Cluster, store: str, *, seconds: float = 60.0, partition: Partition = P0) -> None:
    key = KEYS.leader_target(*partition)
    await cluster.put(key, LeaderOrder(store, cluster.clock.now() + seconds, seconds))


def other(cluster: Cluster) -> str:
    """A store that does not lead."""
    return min({"a", "b", "c"} - {cluster.leader()})


async def test_leadership_is_transferred_as_ordered() -> None:
    """The leader transfers to the voter there, and the key is deleted when that one leads."""
    async with await ready("a b c", "a b c") as cluster:
        to = other(cluster)
        await order(cluster, to)
        await cluster.until(lambda: cluster.leader() == to, seconds=1)
        await cluster.until(lambda: cluster.now(KEY) is None, seconds=1)
        await cluster.until(lambda: cluster.reported() is not None and cluster.reported().store == to)  # type: ignore[union-attr]


async def test_an_order_for_the_leader_is_fulfilled_already() -> None:
    """The order is only deleted."""
    async with await ready("a b c", "a b c") as cluster:
        leader = cluster.leader()
        await order(cluster, leader)
        await cluster.until(lambda: cluster.now(KEY) is None, seconds=1)
        assert cluster.leader() == leader


async def test_an_order_that_cannot_be_followed_expires() -> None:
    """If the store has no replica or is unreachable, nothing happens until the leader deletes the expired order."""
    async with await ready("a b c d", "a b c") as cluster:
        leader = cluster.leader()
        await order(cluster, "d", seconds=20)
        await cluster.pass_time(15)
        assert cluster.now(KEY) is not None
        await cluster.until(lambda: cluster.now(KEY) is None, seconds=6)
        assert cluster.leader() == leader


async def test_wall_clocks_need_not_agree() -> None:
    """An order is followed and expires independently of wall clocks."""
    async with await ready("a b c d", "a b c") as cluster:
        for days in (-2, 2):
            to = other(cluster)
            await cluster.put(KEY, LeaderOrder(to, cluster.clock.now() + days * 86_400))
            await cluster.until(lambda to=to: cluster.leader() == to, seconds=1)  # type: ignore[misc]
            await cluster.until(lambda: cluster.now(KEY) is None, seconds=1)
            await cluster.put(KEY, LeaderOrder("d", cluster.clock.now() + days * 86_400))
            await cluster.pass_time(55)
            assert cluster.now(KEY) is not None
            await cluster.until(lambda: cluster.now(KEY) is None, seconds=6)


async def test_an_order_waits_for_its_store_to_answer() -> None:
    """Leadership is transferred soon after the store's return, also without an event from raft."""
    async with await ready("a b c", "a b c") as cluster:
        to = other(cluster)
        cluster[cluster.leader()].groups.on_change = lambda _: None
        cluster.network.cut = {to}
        await order(cluster, to)
        await cluster.pass_time(10)
        assert cluster.leader() != to
        cluster.network.cut = set()
        await cluster.until(lambda: cluster.leader() == to, seconds=3)


async def test_an_order_waits_for_a_learner_to_vote() -> None:
    """The order is followed once the change has made the learner a voter."""
    async with await ready("a b c d", "a b c d*") as cluster:
        await order(cluster, "d")
        await cluster.pass_time(3)
        assert cluster.leader() != "d"
        await cluster.retarget("a b c d")
        await cluster.until(lambda: cluster.leader() == "d")


async def test_an_order_is_ignored_while_pending_excludes_its_target() -> None:
    """The change has priority; leadership is not transferred to a replica that is about to be removed."""
    async with await ready("a b c d", "a b c") as cluster:
        leaving = other(cluster)
        staying = sorted({"a", "b", "c"} - {leaving})
        cluster.network.held = {"d"}
        await cluster.retarget(" ".join([*staying, "d"]))
        await cluster.until(lambda: "d" in cluster.holders())
        await order(cluster, leaving)
        await cluster.pass_time(5)
        assert cluster.leader() in staying
        await cluster.retarget("a b c")
        await cluster.until(lambda: cluster.leader() == leaving)


async def test_a_changed_order_is_not_deleted() -> None:
    """The deletion compares the revision, so a newer order stays."""
    async with await ready("a b c", "a b c") as cluster:
        to, third = sorted({"a", "b", "c"} - {cluster.leader()})
        cluster[to].way.hold = lambda txn: any(op.key == KEY for op in txn.success)
        await order(cluster, to)
        await cluster.until(lambda: cluster[to].way.holding == 1)
        await order(cluster, third)
        cluster[to].way.hold = lambda _: False
        cluster[to].way.release()
        await cluster.until(lambda: cluster.leader() == third)
        await cluster.until(lambda: cluster.now(KEY) is None)


async def test_an_order_that_is_given_again_is_deleted_too() -> None:
    """An order written while the first was being deleted is fulfilled as well."""
    async with await ready("a b c", "a b c") as cluster:
        leader = cluster[cluster.leader()]
        leader.way.hold = lambda txn: any(op.key == KEY for op in txn.success)
        await order(cluster, leader.name)
        await cluster.until(lambda: leader.way.holding == 1)
        await order(cluster, leader.name)
        await cluster.pass_time(1)
        leader.way.hold = lambda _: False
        leader.way.release()
        await cluster.until(lambda: cluster.now(KEY) is None, seconds=1)


async def test_a_failed_transfer_is_retried_with_backoff() -> None:
    """Transfers that raft accepts but that do not complete are retried with backoff until the order expires."""
    async with await ready("a b c", "a b c") as cluster:
        leader, to = cluster[cluster.leader()], other(cluster)
        leader.groups.transfer = lambda *_: True  # type: ignore[method-assign]
        await order(cluster, to, seconds=30)
        await cluster.pass_time(29)
        tried = leader.agent.status().counters.transfers["order"]
        assert 6 <= tried <= 12
        assert f"leadership transfer to {to} did not complete" in leader.agent.status().problems[P0]
        await cluster.until(lambda: cluster.now(KEY) is None)


async def test_a_malformed_order_is_a_problem() -> None:
    """The problem names the malformed key, and the partition continues."""
    async with await ready("a b c d", "a b c") as cluster:
        await cluster.put(KEY, {"nonsense": 1})
        await cluster.until(lambda: KEY in cluster[cluster.leader()].agent.status().problems.get(P0, ""))
        await cluster.retarget("b c d")
        await cluster.until(lambda: cluster.settled("b c d"))

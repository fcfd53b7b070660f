"""Stores whose leadership is inhibited."""

from __future__ import annotations

import asyncio

from evenkeel.metastore.metastore_api import Delete, Txn
from evenkeel.protocol.records import InhibitionOrder
from evenkeel_raft.shared.raft_groups import Partition
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import P0, TABLE, Cluster
from tests.raft_agent.test_moves import ready


async def test_a_store_leads_nothing_until_the_order_is_removed() -> None:
    """The store hands over its leaderships, takes none, and reports why."""
    async with await ready("a b c", "a b c") as cluster:
        drained = cluster.leader()
        await cluster.put(KEYS.inhibition(drained), InhibitionOrder())
        await cluster.until(lambda: cluster.leader() not in ("", drained), seconds=2)
        assert cluster[drained].groups.leadership_inhibited
        assert cluster[drained].agent.status().handing_over == ("the operator ordered this store to lead nothing",)
        await cluster.metastore.txn(Txn(success=(Delete(KEYS.inhibition(drained)),)))
        await cluster.until(lambda: not cluster[drained].groups.leadership_inhibited)
        assert cluster[drained].agent.status().handing_over == ()


async def test_an_order_for_another_pod_is_ignored() -> None:
    """An order for a previous pod, or for a store whose name has this one's as a prefix, is ignored."""
    async with await ready("a b c", "a b c") as cluster:
        leader = cluster.leader()
        await cluster.put(KEYS.inhibition(leader), InhibitionOrder(pod="another"))
        await cluster.put(KEYS.inhibition(leader + "x"), InhibitionOrder())
        await cluster.pass_time(5)
        assert cluster.leader() == leader
        await cluster.put(KEYS.inhibition(leader), InhibitionOrder(pod=f"{leader}-pod"))
        await cluster.until(lambda: cluster.leader() != leader)


async def test_an_order_applies_from_the_start() -> None:
    """A process that starts while the order exists leads nothing from the start."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster["a"].kill()
        await cluster.put(KEYS.inhibition("a"), InhibitionOrder())
        cluster["a"].start()
        await cluster.until(lambda: cluster["a"].groups.leadership_inhibited)


async def test_a_malformed_order_inhibits_leadership() -> None:
    """A malformed order inhibits leadership, because leading nothing does less harm."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster.put(KEYS.inhibition("a"), "nonsense")
        await cluster.until(lambda: cluster["a"].groups.leadership_inhibited)


async def test_handing_over_waits_for_other_leaders() -> None:
    """`hand_over_all` returns when other stores lead; groups without other voters are counted but not waited for."""
    async with Cluster("a b c") as cluster:
        await cluster.create("a b c", "a", "a b c")
        await cluster.until(lambda: all(cluster.reported(Partition(TABLE, p)) is not None for p in range(3)))
        await cluster.put(KEYS.inhibition("b"), InhibitionOrder())
        await cluster.put(KEYS.inhibition("c"), InhibitionOrder())
        await cluster.until(
            lambda: cluster["b"].groups.leadership_inhibited and cluster["c"].groups.leadership_inhibited
        )
        for name in "bc":
            await cluster.metastore.txn(Txn(success=(Delete(KEYS.inhibition(name)),)))
        await cluster.until(lambda: {cluster.leader(Partition(TABLE, p)) for p in range(3)} == {"a"})
        task = asyncio.ensure_future(cluster["a"].agent.hand_over_all())
        await cluster.until(task.done, seconds=2)
        assert task.result() == 1
        assert cluster.leader(Partition(TABLE, 1)) == "a"


async def test_handing_over_does_not_wait_for_sole_voters() -> None:
    """A group without other voters is not waited for, also without its state machine, as when a pod ends."""
    async with await ready("a b c", "a") as cluster:
        cluster["a"].groups.leading = lambda partition: None  # type: ignore[method-assign]
        task = asyncio.ensure_future(cluster["a"].agent.hand_over_all())
        await cluster.until(task.done, seconds=1)
        assert task.result() == 1


async def test_handing_over_times_out() -> None:
    """If no store can take over, `hand_over_all` returns after its timeout with the number of remaining groups."""
    async with await ready("a b c", "a b c") as cluster:
        leader = cluster.leader()
        others = {"a", "b", "c"} - {leader}
        for name in others:
            cluster[name].groups.leadership_inhibited = True
        started = cluster.clock.now()
        task = asyncio.ensure_future(cluster[leader].agent.hand_over_all())
        await cluster.until(task.done)
        assert task.result() == 1
        assert 10 <= cluster.clock.now() - started < 11


async def test_reasons_add_up() -> None:
    """The store may lead again only when the last reason is removed."""
    async with await ready("a b c", "a b c") as cluster:
        agent, groups = cluster["a"].agent, cluster["a"].groups
        agent.inhibit_leadership("one")
        agent.inhibit_leadership("other")
        agent.allow_leadership("one")
        agent.allow_leadership("never given")
        assert groups.leadership_inhibited
        agent.allow_leadership("other")
        assert not groups.leadership_inhibited
        assert P0 in groups.running()

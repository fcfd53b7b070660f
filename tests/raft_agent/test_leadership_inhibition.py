"""Stores that are to lead nothing."""

from __future__ import annotations

import asyncio

from evenkeel.metastore.metastore_api import Delete, Txn
from evenkeel.protocol.records import Drain
from evenkeel_raft.shared.raft_groups import Partition
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import P0, TABLE, Cluster
from tests.raft_agent.test_moves import ready


async def test_a_drained_store_leads_nothing_until_the_order_is_gone() -> None:
    """It hands over what it leads, stays reluctant, and says why."""
    async with await ready("a b c", "a b c") as cluster:
        drained = cluster.leader()
        await cluster.put(KEYS.drain(drained), Drain())
        await cluster.until(lambda: cluster.leader() not in ("", drained), seconds=2)
        assert cluster[drained].groups.leadership_inhibited
        assert cluster[drained].agent.status().handing_over == ("the operator ordered this store to lead nothing",)
        await cluster.metastore.txn(Txn(success=(Delete(KEYS.drain(drained)),)))
        await cluster.until(lambda: not cluster[drained].groups.leadership_inhibited)
        assert cluster[drained].agent.status().handing_over == ()


async def test_an_order_for_another_pod_is_ignored() -> None:
    """The pod that was meant is gone, and this is its successor; likewise a store whose name only begins the same."""
    async with await ready("a b c", "a b c") as cluster:
        leader = cluster.leader()
        await cluster.put(KEYS.drain(leader), Drain(pod="another"))
        await cluster.put(KEYS.drain(leader + "x"), Drain())
        await cluster.pass_time(5)
        assert cluster.leader() == leader
        await cluster.put(KEYS.drain(leader), Drain(pod=f"{leader}-pod"))
        await cluster.until(lambda: cluster.leader() != leader)


async def test_an_order_is_there_before_the_store() -> None:
    """A process that starts while its store is drained leads nothing from the beginning."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster["a"].kill()
        await cluster.put(KEYS.drain("a"), Drain())
        cluster["a"].start()
        await cluster.until(lambda: cluster["a"].groups.leadership_inhibited)


async def test_an_order_that_makes_no_sense_is_taken_for_one() -> None:
    """Somebody meant something: a store that leads nothing does less harm than one that should not."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster.put(KEYS.drain("a"), "nonsense")
        await cluster.until(lambda: cluster["a"].groups.leadership_inhibited)


async def test_draining_waits_for_others_to_take_over() -> None:
    """It returns when that is done; groups that have nobody else are counted, and not waited for."""
    async with Cluster("a b c") as cluster:
        await cluster.create("a b c", "a", "a b c")
        await cluster.until(lambda: all(cluster.reported(Partition(TABLE, p)) is not None for p in range(3)))
        await cluster.put(KEYS.drain("b"), Drain())
        await cluster.put(KEYS.drain("c"), Drain())
        await cluster.until(
            lambda: cluster["b"].groups.leadership_inhibited and cluster["c"].groups.leadership_inhibited
        )
        for name in "bc":
            await cluster.metastore.txn(Txn(success=(Delete(KEYS.drain(name)),)))
        await cluster.until(lambda: {cluster.leader(Partition(TABLE, p)) for p in range(3)} == {"a"})
        task = asyncio.ensure_future(cluster["a"].agent.hand_over_all())
        await cluster.until(task.done, seconds=2)
        assert task.result() == 1
        assert cluster.leader(Partition(TABLE, 1)) == "a"


async def test_draining_waits_for_nobody_who_cannot_come() -> None:
    """A group without others is not waited for, also when its state machine is gone, as it is when a pod ends."""
    async with await ready("a b c", "a") as cluster:
        cluster["a"].groups.leading = lambda partition: None  # type: ignore[method-assign]
        task = asyncio.ensure_future(cluster["a"].agent.hand_over_all())
        await cluster.until(task.done, seconds=1)
        assert task.result() == 1


async def test_draining_does_not_wait_for_ever() -> None:
    """Where nobody can take over, it gives up after its time and says how many are left."""
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
    """Only when the last reason is gone does the store lead again."""
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

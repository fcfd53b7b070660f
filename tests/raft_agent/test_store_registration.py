"""A store's registration: one lease, one live process per name."""

from __future__ import annotations

import asyncio

from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.protocol.records import StoreRecord, decode, encode
from evenkeel.versions import SUPPORTED
from evenkeel_raft.agent.agent_settings import AgentSettings
from evenkeel_raft.agent.agent_status import AgentState
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import P0, Cluster, puts
from tests.raft_agent.test_moves import ready

KEY = KEYS.store("a")


def registered(cluster: Cluster, key: str = KEY) -> StoreRecord | None:
    kv = cluster.now(key)
    return None if kv is None else decode(StoreRecord, kv.value, key=key)


async def test_the_record_is_bound_to_a_lease_that_is_refreshed() -> None:
    """The record exists while the process lives, and expires after it is killed."""
    async with Cluster("a") as cluster:
        await cluster.started()
        first = cluster.now(KEY)
        await cluster.pass_time(60)
        assert cluster.now(KEY) == first, "refreshing writes nothing"
        assert registered(cluster) == StoreRecord(volume="a-1", address="10.0.0.0:7000", versions=SUPPORTED)
        await cluster["a"].kill()
        await cluster.pass_time(3)
        assert registered(cluster) is not None
        await cluster.pass_time(6)
        assert registered(cluster) is None


async def test_it_is_renewed_when_the_lease_was_lost() -> None:
    """The record is written again after an etcd outage longer than the lease, and after a deletion of the key."""
    async with Cluster("a") as cluster:
        await cluster.started()
        cluster["a"].way.leave()
        await cluster.until(lambda: registered(cluster) is None)
        await cluster.pass_time(20)
        cluster["a"].way.come_back()
        await cluster.until(lambda: registered(cluster) is not None)
        await cluster.metastore.txn(Txn(success=(Delete(KEY),)))
        await cluster.until(lambda: registered(cluster) is not None, seconds=1)
        await cluster.pass_time(30)
        assert cluster["a"].agent.status().state is AgentState.FOLLOWING


async def test_a_restart_on_the_same_volume_takes_over_at_once() -> None:
    """A new process on the same volume does not wait for its predecessor's lease."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster["a"].kill()
        cluster["a"].start()
        await cluster.until(lambda: cluster["a"].agent.status().state is AgentState.FOLLOWING, seconds=1)
        await cluster.pass_time(30)
        assert registered(cluster) is not None


async def test_what_was_seen_before_is_acted_on_once_registered() -> None:
    """Events from before the registration are acted on afterwards."""
    async with Cluster("a b c") as cluster:
        await cluster.create("a b c")
        cluster["c"].way.hold = puts("stores")
        await cluster.until(lambda: cluster.holders() == {"a", "b"})
        await cluster.pass_time(5)
        assert cluster.holders() == {"a", "b"}
        cluster["c"].way.hold = lambda _: False
        cluster["c"].way.release()
        await cluster.until(lambda: cluster.settled("a b c"), seconds=1)


async def test_a_live_process_with_another_volume_is_waited_for() -> None:
    """While the name is taken nothing is done and the reason is reported."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster["c"].kill()
        other = await cluster.metastore.lease(100)
        taken = Put(KEYS.store("c"), encode(StoreRecord(volume="c-9")), other.id)
        await cluster.metastore.txn(Txn(success=(taken,)))
        cluster["c"].start()
        await cluster.retarget("a b")
        await cluster.pass_time(40)
        status = cluster["c"].agent.status()
        assert status.state is AgentState.UNREGISTERED
        assert "registered as store c with volume c-9, and this one has volume c-1" in status.why
        assert cluster.holders() == {"a", "b", "c"}
        await other.revoke()
        await cluster.until(lambda: cluster.settled("a b"))
        assert registered(cluster, KEYS.store("c")) is not None


async def test_two_processes_on_one_volume_do_not_fight() -> None:
    """The process registered first gives way and reports it; it registers again when the other is gone."""
    async with Cluster("a") as cluster:
        await cluster.started()
        other = await cluster.metastore.lease(100)
        await cluster.metastore.txn(Txn(success=(Put(KEY, encode(StoreRecord(volume="a-1")), other.id),)))
        await cluster.pass_time(20)
        status = cluster["a"].agent.status()
        assert status.state is AgentState.UNREGISTERED
        assert "with the same volume" in status.why
        kv = cluster.now(KEY)
        assert kv is not None
        assert kv.lease == other.id
        await other.revoke()
        await cluster.until(lambda: cluster["a"].agent.status().state is AgentState.FOLLOWING)


async def test_a_graceful_stop_hands_over_and_then_deregisters() -> None:
    """The lease is revoked after other stores lead."""
    async with await ready("a b c", "a b c") as cluster:
        leader = cluster[cluster.leader()]
        stopping = asyncio.ensure_future(leader.agent.stop())
        await cluster.until(lambda: registered(cluster, KEYS.store(leader.name)) is None, seconds=2)
        assert cluster.leader() not in ("", leader.name)
        await stopping
        assert leader.task is not None
        await cluster.until(leader.task.done)


async def test_a_stop_without_a_metastore_ends_too() -> None:
    """Handing over needs no metastore, and the lease expires."""
    async with await ready("a b c", "a b c") as cluster:
        leader = cluster[cluster.leader()]
        leader.way.leave()
        stopping = asyncio.ensure_future(leader.agent.stop())
        await cluster.until(stopping.done, seconds=2)
        assert cluster.leader() not in ("", leader.name)


async def test_raft_gets_the_peers() -> None:
    """Raft gets the registered stores; one whose lease ended stays known while partitions name it."""
    async with await ready("a b c d", "a b c") as cluster:
        assert sorted(cluster["a"].groups.peers) == ["b", "c", "d"]
        assert cluster["a"].groups.peers["b"] == ("10.0.0.1", 7000, "b-1")
        await cluster["c"].kill()
        await cluster["d"].kill()
        await cluster.until(lambda: registered(cluster, KEYS.store("c")) is None)
        await cluster.pass_time(AgentSettings().sweep_seconds)
        assert sorted(cluster["a"].groups.peers) == ["b", "c"]
        assert P0 in cluster["a"].groups.running()

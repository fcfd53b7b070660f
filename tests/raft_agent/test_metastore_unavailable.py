"""The agent without its metastore, and with one that loses requests and responses."""

from __future__ import annotations

import pytest

from evenkeel.metastore.metastore_api import Delete, Txn
from evenkeel.protocol.records import Retarget
from evenkeel_raft.agent.agent_settings import AgentSettings
from evenkeel_raft.agent.agent_status import AgentState
from evenkeel_raft.shared.raft_groups import Partition
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import P0, TABLE, Cluster, puts, writes
from tests.raft_agent.test_moves import ready


async def test_a_store_starts_without_a_metastore() -> None:
    """Replicas run and the agent reports why it waits; it continues when etcd is available."""
    async with await ready("a b c d", "a b c") as cluster:
        await cluster.retarget("a b d")
        await cluster["c"].kill()
        await cluster.until(lambda: "d" in cluster.holders() and cluster.view().pending is None)
        cluster["c"].way.leave()
        cluster["c"].start()
        await cluster.pass_time(30)
        status = cluster["c"].agent.status()
        assert status.state is AgentState.CONNECTING
        assert "no etcd endpoint answers" in status.why
        assert status.replicas == 1, "an unconfirmed exclusion deletes nothing"
        cluster["c"].way.come_back()
        await cluster.until(lambda: cluster.settled("a b d"))


async def test_etcd_becomes_unavailable_during_a_change() -> None:
    """A change pauses while etcd is unavailable, groups keep serving, and the change resumes afterwards."""
    async with await ready("a b c d", "a b c") as cluster:
        cluster.network.held = {"d"}
        await cluster.retarget("a b d")
        await cluster.until(lambda: "d" in cluster.holders())
        for store in cluster.stores.values():
            store.way.leave()
        cluster.network.held = set()
        await cluster.pass_time(60)
        assert cluster.leader() != ""
        assert cluster.view().lock is None
        for store in cluster.stores.values():
            store.way.come_back()
        await cluster.until(lambda: cluster.settled("a b d"))
        assert all(store.agent.status().state is AgentState.FOLLOWING for store in cluster.stores.values())


@pytest.mark.parametrize("mode", [Retarget.ADJUST, Retarget.CANCEL])
@pytest.mark.parametrize("kind", ["pending.lock", "stable", "pending", "leaders", "stores"])
@pytest.mark.parametrize("carried_out", [True, False], ids=["answer-lost", "request-lost"])
async def test_an_unknown_outcome(kind: str, mode: Retarget, carried_out: bool) -> None:
    """Whichever transaction has an unknown outcome, applied or not, the target is reached."""
    async with Cluster("a b c d e") as cluster:
        lost: list[str] = []

        def once(name: str, *, carry_out: bool) -> None:
            def matches(txn: Txn) -> bool:
                if name in lost or not writes(kind)(txn):
                    return False
                lost.append(name)
                return True

            if carry_out:
                cluster[name].way.lose_answer = matches
            else:
                cluster[name].way.drop = matches

        for name in cluster.stores:
            once(name, carry_out=carried_out)
        await cluster.create("a b c", mode=mode)
        await cluster.until(lambda: cluster.settled("a b c"))
        cluster.network.held = {"d"}
        await cluster.retarget("b c d")
        await cluster.until(lambda: "d" in cluster.holders())
        await cluster.retarget("b c e")
        cluster.network.held = set()
        await cluster.until(lambda: cluster.settled("b c e"))
        await cluster.until(
            lambda: cluster.reported() is not None and cluster.reported().store == cluster.leader(),  # type: ignore[union-attr]
            seconds=3,
        )
        assert lost, "the fault has happened"


async def test_after_an_unknown_lock_the_leader_reads_and_locks_again() -> None:
    """The leader does not rely on a lock of unknown outcome; it acts only on one that was confirmed."""
    async with await ready("a b c d", "a b c") as cluster:
        leader = cluster[cluster.leader()]
        locks = 0

        def first(txn: Txn) -> bool:
            nonlocal locks
            locks += puts("pending.lock")(txn)
            return locks == 1 and puts("pending.lock")(txn)

        leader.way.lose_answer = first
        reads = leader.agent.status().counters.reads
        await cluster.retarget("a b c d")
        await cluster.until(lambda: cluster.settled("a b c d"))
        assert locks == 2
        assert leader.agent.status().counters.reads == reads + 1
        assert leader.agent.status().counters.transactions["lock", "unknown"] == 1


async def test_nothing_is_done_before_the_watch_has_shown_it() -> None:
    """After a successful lock the final entry waits for the watch; if the watch is stuck, the sweep reads."""
    async with await ready("a b c d", "a b c", settings=AgentSettings()) as cluster:
        leader = cluster[cluster.leader()]
        leader.way.hold = puts("pending.lock")
        await cluster.retarget("a b c d")
        await cluster.until(lambda: leader.way.holding == 1)
        leader.way.blind()
        leader.way.release()
        await cluster.pass_time(5)
        status = leader.agent.status()
        assert status.counters.transactions["lock", "done"] == 1
        assert status.counters.proposals["final"] == 0
        await cluster.pass_time(leader.settings.sweep_seconds)
        assert leader.agent.status().counters.proposals["final"] == 1
        leader.way.unblind()
        await cluster.until(lambda: cluster.settled("a b c d"))
        assert leader.agent.status().counters.worst_watch_lag > 5


async def test_a_changed_table_record_rejects_one_transaction() -> None:
    """A rejected transaction returns the table's record, so the next one compares the current one."""
    async with await ready("a b c d", "a b c") as cluster:
        leader = cluster[cluster.leader()]
        leader.way.hold = puts("pending.lock")
        await cluster.retarget("a b c d")
        await cluster.until(lambda: leader.way.holding == 1)
        leader.way.blind()
        await cluster.touch(KEYS.table(TABLE))
        leader.way.hold = lambda _: False
        leader.way.release()
        await cluster.pass_time(2)
        assert leader.agent.status().counters.transactions["lock", "refused"] == 1
        assert leader.agent.status().counters.transactions["lock", "done"] == 1
        leader.way.unblind()
        await cluster.until(lambda: cluster.settled("a b c d"))


async def test_a_rejected_transaction_returns_the_current_keys() -> None:
    """The operator replaced pending while the lock was in flight: the leader continues with the new one at once."""
    async with await ready("a b c d e", "a b c") as cluster:
        leader = cluster[cluster.leader()]
        leader.way.hold = puts("pending.lock")
        await cluster.retarget("a b c d")
        await cluster.until(lambda: leader.way.holding == 1)
        await cluster.retarget("a b c e")
        leader.way.blind()
        leader.way.release()
        await cluster.pass_time(2)
        group = leader.groups.leading(P0)
        assert group is not None
        assert [peer.store for peer in group.applied.staged] == ["e"], "although its watch shows nothing"


async def test_a_malformed_key_stops_only_its_partition() -> None:
    """The partition has a problem that names the key; other partitions continue, and it does once corrected."""
    async with await ready("a b c d", "a b c") as cluster:
        pending, other = KEYS.partition(*P0).pending, Partition("items.2", 0)
        await cluster.put(pending, {"queue": "nonsense"})
        await cluster.create("a b c", table=other.table)
        leader = cluster[cluster.leader()]
        await cluster.until(lambda: pending in leader.agent.status().problems.get(P0, ""))
        await cluster.retarget("b c d", partition=other)
        await cluster.until(lambda: cluster.settled("b c d", other))
        await cluster.metastore.txn(Txn(success=(Delete(pending),)))
        await cluster.retarget("b c d")
        await cluster.until(lambda: cluster.settled("b c d"))
        assert leader.agent.status().problems == {}


async def test_a_metastore_without_space_costs_no_registration() -> None:
    """Leases and sessions survive, and pending writes are written when there is space."""
    async with await ready("a b c d", "a b c") as cluster:
        await cluster.retarget("a b d")
        sessions = {name: store.agent.status().counters.sessions for name, store in cluster.stores.items()}
        for store in cluster.stores.values():
            store.way.space = False
        await cluster.pass_time(60)
        assert {kv.key for kv in cluster.mvcc.range(KEYS.stores()).kvs} == {KEYS.store(name) for name in "abcd"}
        assert {store.agent.status().state for store in cluster.stores.values()} == {AgentState.FOLLOWING}
        assert cluster.leader() != ""
        for store in cluster.stores.values():
            store.way.space = True
        await cluster.until(lambda: cluster.settled("a b d"))
        assert {name: store.agent.status().counters.sessions for name, store in cluster.stores.items()} == sessions

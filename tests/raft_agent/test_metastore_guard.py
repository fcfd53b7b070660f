"""A replaced, emptied or restored metastore: the agent changes nothing and reports it."""

from __future__ import annotations

import pytest

from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Delete, Txn
from evenkeel.metastore.mvcc import Mvcc
from evenkeel_raft.agent.agent_settings import AgentSettings
from evenkeel_raft.agent.agent_status import AgentState
from evenkeel_raft.shared.raft_groups import MetastoreMark
from tests.protocol.support import KEYS, put
from tests.raft_agent.cluster import Cluster, StoreProcess
from tests.raft_agent.test_moves import ready


def untouched(store: StoreProcess, other: Mvcc) -> bool:
    """Whether the store neither wrote to that metastore nor changed its disk."""
    return other.range("").kvs == () and not store.groups.destroyed and store.agent.status().replicas == 1


def assert_mismatch(cluster: Cluster, words: str) -> None:
    for store in cluster.stores.values():
        assert store.agent.status().state is AgentState.MISMATCH
        assert words in store.agent.status().why


@pytest.mark.parametrize("restart", [False, True], ids=["under-its-feet", "at-the-start"])
@pytest.mark.parametrize(
    ("cluster_id", "words"), [(2, "etcd cluster 2, but this volume follows 1"), (1, "at revision 1, but")]
)
async def test_an_empty_etcd(cluster_id: int, words: str, restart: bool) -> None:
    """The agent deletes nothing for and writes nothing to a new or emptied etcd;

    it continues when the old one is back.
    """
    async with await ready("a b c d", "a b c") as cluster:
        fresh = Mvcc()
        other = MemoryMetastore(clock=cluster.clock, cluster_id=cluster_id, mvcc=fresh)
        await cluster["d"].kill()
        del cluster.stores["d"]
        for store in cluster.stores.values():
            if restart:
                await store.kill()
            store.way.become(other)
            if restart:
                store.start()
        await cluster.touch(KEYS.partition("orders.1", 0).stable)
        await cluster.pass_time(120)
        assert_mismatch(cluster, words)
        assert all(untouched(store, fresh) for store in cluster.stores.values())
        assert cluster.leader() != ""
        for store in cluster.stores.values():
            store.way.become(cluster.metastore)
        await cluster.started()
        await cluster.retarget("b c")
        await cluster.until(lambda: cluster.settled("b c"))


async def test_everything_deleted_by_hand() -> None:
    """If no table is left although the store has replicas, nothing is deleted and no registration renewed."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster.metastore.txn(Txn(success=(Delete(KEYS.root, prefix=True),)))
        await cluster.pass_time(60)
        assert_mismatch(cluster, "no table, but this store has 1 replicas")
        assert cluster.holders() == {"a", "b", "c"}
        assert [kv.key for kv in cluster.mvcc.range(KEYS.root).kvs] == []


async def test_a_new_cluster_has_no_tables_either() -> None:
    """A store without replicas registers in an empty etcd."""
    async with Cluster("a") as cluster:
        await cluster.started()
        assert cluster.now(KEYS.store("a")) is not None


async def test_adopting_another_metastore() -> None:
    """With the setting, the store follows a mismatching metastore once, and that one is its metastore afterwards."""
    async with await ready("a b c", "a b c") as cluster:
        other = MemoryMetastore(clock=cluster.clock, cluster_id=7)
        await cluster["c"].kill()
        store = cluster["c"]
        store.way.become(other)
        store.settings = AgentSettings(adopt_metastore=True)
        store.start()
        await cluster.until(lambda: store.agent.status().state is AgentState.FOLLOWING)
        assert store.disk.mark is not None
        assert store.disk.mark.cluster == 7
        assert await other.get(KEYS.store("c")) is not None
        await store.kill()
        store.settings = AgentSettings()
        store.way.become(cluster.metastore)
        store.start()
        await cluster.until(lambda: store.agent.status().state is AgentState.MISMATCH)


async def test_a_restored_backup_is_noticed_by_its_revision() -> None:
    """An etcd with tables but a lower revision than the volume has seen is a mismatch."""
    async with await ready("a b c", "a b c") as cluster:
        backup = cluster.mvcc.clone()
        for number in range(5):
            put(cluster.mvcc, "/elsewhere", number)
        await cluster.touch(KEYS.table("orders.1"))
        await cluster.pass_time(15)
        restored = MemoryMetastore(clock=cluster.clock, mvcc=backup)
        for store in cluster.stores.values():
            await store.kill()
            store.way.become(restored)
            store.start()
        await cluster.pass_time(30)
        assert_mismatch(cluster, "it was emptied or restored")


async def test_the_mark_is_written_first_and_then_seldom() -> None:
    """The mark is saved before the first action, then every ten seconds or thousand revisions, and never when idle."""
    async with Cluster("a", settings=AgentSettings(report_seconds=10_000, sweep_seconds=10_000)) as cluster:
        marks, way = cluster["a"].groups.marks, cluster["a"].way
        way.hold = lambda _: not marks
        await cluster.started()
        assert way.holding == 0, "no transaction before the mark"
        first = len(marks)
        await cluster.pass_time(60)
        assert len(marks) <= first + 1, "its own registration is all there was to see"
        settled = len(marks)
        for _ in range(1001):
            await cluster.put(KEYS.table("orders.1"), {})
        await cluster.turn()
        assert len(marks) == settled + 1
        await cluster.put(KEYS.table("orders.1"), {})
        await cluster.pass_time(5)
        assert len(marks) == settled + 1
        await cluster.pass_time(6)
        assert len(marks) == settled + 2
        assert marks[-1] == MetastoreMark(1, cluster.mvcc.revision)

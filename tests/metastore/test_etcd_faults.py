"""The etcd client on connections that break, hang or are refused, by a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from evenkeel.errors import ClusterMismatchError, UnreachableError
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer, free_port
from evenkeel.metastore.metastore_api import Get, Txn, absent
from tests.metastore.support import (
    TIMEOUT,
    Proxy,
    compact_etcd,
    delete,
    events_until,
    events_until_end,
    of_key,
    put,
    settings_for,
    shown,
)


@pytest.fixture
async def direct(shared_server: EtcdServer) -> AsyncIterator[EtcdMetastore]:
    """Return a metastore on an undisturbed connection."""
    async with EtcdMetastore(settings_for(shared_server.endpoint)) as store:
        yield store


@pytest.fixture
async def proxy(shared_server: EtcdServer) -> AsyncIterator[Proxy]:
    async with Proxy(shared_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[EtcdMetastore]:
    """Return a metastore behind the proxy."""
    async with EtcdMetastore(settings_for(proxy.endpoint)) as store:
        yield store


async def test_watch_survives_cut_connections(
    direct: EtcdMetastore, proxy: Proxy, store: EtcdMetastore, prefix: str
) -> None:
    """Changes during a disconnect are delivered after the reconnect, exactly once."""
    watch = store.watch(prefix, after=await direct.range(prefix))
    seen = []
    for number in range(3):
        await direct.txn(put(f"{prefix}{number}-before"))
        seen += await events_until(watch, of_key(f"{prefix}{number}-before"))
        await proxy.refuse()
        await direct.txn(put(f"{prefix}{number}-during"))
        await proxy.accept()
    seen += await events_until_end(watch, direct, prefix)
    assert [key for key, _ in shown(seen)] == [f"{n}-{when}" for n in range(3) for when in ("before", "during")]


async def test_watch_survives_compaction_while_cut_off(
    direct: EtcdMetastore, proxy: Proxy, store: EtcdMetastore, shared_server: EtcdServer, prefix: str
) -> None:
    """If the history was compacted during a disconnect, the watch delivers the difference and continues."""
    for key in ("changed", "deleted", "kept"):
        await direct.txn(put(prefix + key, b"0"))
    watch = store.watch(prefix, after=await direct.range(prefix))
    await direct.txn(put(prefix + "changed", b"1"))
    assert shown(await events_until(watch, lambda _: True)) == [("changed", b"1")]
    await proxy.refuse()
    await direct.txn(put(prefix + "changed", b"2"))
    await direct.txn(put(prefix + "changed", b"3"))
    last = await direct.txn(delete(prefix + "deleted"))
    await compact_etcd(shared_server.endpoint, last.revision)
    await proxy.accept()
    await direct.txn(put(prefix + "kept", b"4"))
    events = await events_until_end(watch, direct, prefix)
    assert sorted(shown(events)) == [("changed", b"3"), ("deleted", None), ("kept", b"4")]


async def test_watch_leaves_a_silent_endpoint(
    direct: EtcdMetastore, proxy: Proxy, shared_server: EtcdServer, prefix: str
) -> None:
    """A silent connection is detected, and the watch moves to another endpoint."""
    async with EtcdMetastore(settings_for(proxy.endpoint, shared_server.endpoint)) as store:
        watch = store.watch(prefix, after=await direct.range(prefix))
        await direct.txn(put(prefix + "a"))
        await events_until(watch, lambda _: True)
        assert proxy.accepted > 0
        proxy.stall()
        await direct.txn(put(prefix + "b"))
        assert shown(await events_until_end(watch, direct, prefix)) == [("b", b"")]


async def test_reads_wait_for_etcd(proxy: Proxy, store: EtcdMetastore, prefix: str) -> None:
    """A read without a reachable endpoint succeeds if one becomes reachable in time."""
    await proxy.slam()
    reading = asyncio.create_task(store.get(prefix + "a"))
    async with asyncio.timeout(TIMEOUT):
        await proxy.slammed.wait()
    await proxy.accept()
    assert await reading is None


async def test_reads_leave_a_silent_endpoint(
    direct: EtcdMetastore, proxy: Proxy, shared_server: EtcdServer, prefix: str
) -> None:
    """A read on a hanging connection is retried at another endpoint within its timeout."""
    await direct.txn(put(prefix + "a", b"1"))
    settings = settings_for(proxy.endpoint, shared_server.endpoint, request_timeout=2.0)
    async with EtcdMetastore(settings) as store:
        await store.get(prefix + "a")
        assert proxy.accepted == 1
        proxy.stall()
        kv = await store.get(prefix + "a")
        assert kv is not None
        assert (await store.range(prefix)).kvs == (kv,)
        assert (await store.txn(Txn(success=(Get(prefix + "a"),)))).results[0].kvs == (kv,)


async def test_unsent_transaction_waits(proxy: Proxy, store: EtcdMetastore, prefix: str) -> None:
    """A transaction that was certainly not sent is sent once when etcd is reachable again."""
    await proxy.slam()
    writing = asyncio.create_task(store.txn(put(prefix + "a", b"1")))
    async with asyncio.timeout(TIMEOUT):
        await proxy.slammed.wait()
    await proxy.accept()
    assert (await writing).succeeded
    kv = await store.get(prefix + "a")
    assert kv is not None
    assert kv.version == 1


async def test_transaction_after_an_idle_restart(proxy: Proxy, store: EtcdMetastore, prefix: str) -> None:
    """A connection that was lost while idle does not affect the next transaction."""
    await store.txn(put(prefix + "a", b"1"))
    connection = store._link._connection
    assert connection is not None
    await proxy.cut()
    async with asyncio.timeout(TIMEOUT):
        await connection.until_lost()
    assert (await store.txn(put(prefix + "a", b"2"))).succeeded


async def test_transaction_of_unknown_outcome(
    direct: EtcdMetastore, proxy: Proxy, store: EtcdMetastore, prefix: str
) -> None:
    """If the response is lost, the error says that the outcome is unknown, and the transaction is not sent again."""
    await store.txn(put(prefix + "a", b"1"))
    watch = direct.watch(prefix, after=await direct.range(prefix))
    proxy.swallow_answers()
    writing = asyncio.create_task(store.txn(put(prefix + "a", b"2")))
    assert shown(await events_until(watch, lambda _: True)) == [("a", b"2")]
    await proxy.cut()
    await proxy.accept()
    with pytest.raises(UnreachableError, match="its outcome is unknown"):
        await writing
    kv = await direct.get(prefix + "a")
    assert kv is not None
    assert (kv.value, kv.version) == (b"2", 2)


async def test_hanging_transaction_times_out(proxy: Proxy, prefix: str) -> None:
    """A transaction on a hanging connection ends with its timeout."""
    async with EtcdMetastore(settings_for(proxy.endpoint, request_timeout=0.5)) as store:
        await store.get(prefix + "a")
        proxy.stall()
        with pytest.raises(UnreachableError, match="its outcome is unknown"):
            await store.txn(put(prefix + "a"))
        await proxy.cut()
        await proxy.accept()
        await store.get(prefix + "a")


async def test_unreachable_error_says_what_to_check() -> None:
    """The error names each endpoint with its own failure, and what to check."""
    endpoints = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    async with EtcdMetastore(settings_for(*endpoints, request_timeout=0.5)) as store:
        with pytest.raises(UnreachableError) as caught:
            await store.txn(put("a"))
    message = str(caught.value)
    assert all(f"{endpoint} (" in message for endpoint in endpoints)
    assert message.count("Connection refused") == 2
    assert "check that etcd runs" in message
    assert "may or may not" not in message


async def test_lease_is_refreshed_over_a_new_connection(proxy: Proxy, store: EtcdMetastore) -> None:
    """A lease refresh is retried like a read."""
    lease = await store.lease(60)
    await proxy.cut()
    assert await lease.refresh()
    await lease.revoke()


async def test_large_prefix_is_one_revision(shared_server: EtcdServer, prefix: str) -> None:
    """A listing in pages is of one revision, even if keys are written between the pages."""
    keys = [f"{prefix}{number:02}" for number in range(20)]
    async with EtcdMetastore(settings_for(shared_server.endpoint, page_keys=3)) as store:
        for key in keys:
            await store.txn(put(key, b"0"))
        stop = asyncio.Event()

        async def overwrite() -> None:
            while not stop.is_set():
                await store.txn(Txn(success=tuple(put(key, b"1").success[0] for key in keys)))

        overwriting = asyncio.create_task(overwrite())
        for _ in range(10):
            snapshot = await store.range(prefix)
            assert [kv.key for kv in snapshot.kvs] == keys
            assert len({kv.value for kv in snapshot.kvs}) == 1
            assert max(kv.mod_revision for kv in snapshot.kvs) <= snapshot.revision
        stop.set()
        await overwriting


async def test_compaction_between_a_failed_write_and_its_reads(shared_server: EtcdServer, prefix: str) -> None:
    """If the revision of a failed transaction is compacted before its reads, the whole transaction runs again."""
    keys = [f"{prefix}{number}" for number in range(8)]
    fails = Txn((absent(keys[0]),), (put(keys[0], b"2").success[0],), tuple(Get(key) for key in keys))
    async with Proxy(shared_server.endpoint) as proxy, EtcdMetastore(settings_for(proxy.endpoint)) as store:
        await store.txn(put(keys[0], b"1"))
        proxy.swallow_answers()
        writing = asyncio.create_task(store.txn(fails))
        async with asyncio.timeout(TIMEOUT):
            await proxy.swallowed.wait()
        async with EtcdMetastore(settings_for(shared_server.endpoint)) as direct:
            later = await direct.txn(put(keys[1], b"1"))
        await compact_etcd(shared_server.endpoint, later.revision)
        await proxy.accept()
        result = await writing
    assert not result.succeeded
    assert result.revision == later.revision
    assert [len(part.kvs) for part in result.results] == [1, 1, 0, 0, 0, 0, 0, 0]


async def test_another_cluster_is_refused(new_server: Callable[..., EtcdServer]) -> None:
    """If another etcd answers at the same address, requests and watches fail."""
    async with new_server(fsync=False) as ours, new_server(fsync=False) as other:
        async with Proxy(ours.endpoint) as proxy, EtcdMetastore(settings_for(proxy.endpoint)) as store:
            first = await store.cluster_id()
            watch = store.watch("", after=await store.range(""))
            await proxy.refuse()
            proxy.redirect(other.endpoint)
            await proxy.accept()
            with pytest.raises(ClusterMismatchError, match="belongs to cluster"):
                await events_until(watch, lambda _: True)
            with pytest.raises(ClusterMismatchError):
                await store.get("a")
        async with EtcdMetastore(settings_for(other.endpoint)) as elsewhere:
            assert await elsewhere.cluster_id() != first


async def test_a_lower_revision_is_refused(new_server: Callable[..., EtcdServer]) -> None:
    """If a cluster of the same identity is at a lower revision, requests and watches fail."""
    ours, emptied = new_server(fsync=False), new_server(fsync=False)
    emptied.cluster_token, emptied.peer_port = ours.cluster_token, ours.peer_port
    emptied.peers = ours.peers
    async with Proxy(ours.endpoint) as proxy, EtcdMetastore(settings_for(proxy.endpoint)) as store:
        async with ours:
            await store.txn(put("a"))
            await store.txn(put("b"))
            watch = store.watch("", after=await store.range(""))
        proxy.redirect(emptied.endpoint)
        async with emptied:
            with pytest.raises(ClusterMismatchError, match="revision 1, but 3 has been seen"):
                await store.get("a")
            with pytest.raises(ClusterMismatchError, match="revision 1, but 3 has been seen"):
                await events_until(watch, lambda _: True)

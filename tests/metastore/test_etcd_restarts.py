"""The etcd client during restarts of the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from evenkeel.errors import ClusterMismatchError, UnreachableError
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer
from evenkeel.metastore.metastore_api import Metastore
from tests.metastore.support import (
    Proxy,
    compact_etcd,
    delete,
    events_until,
    events_until_end,
    of_key,
    persistent_txn,
    put,
    settings_for,
    shown,
)

ways = pytest.mark.parametrize("way", ["terminate", pytest.param("kill", marks=pytest.mark.kills_etcd)])


@ways
async def test_watch_survives_restarts(new_server: Callable[..., EtcdServer], way: str) -> None:
    """A watch continues across server restarts and delivers each change once."""
    async with new_server() as server, EtcdMetastore(settings_for(server.endpoint)) as store:
        watch = store.watch("/w/", after=await store.range("/w/"))
        seen = []
        for number in range(3):
            await store.txn(put(f"/w/{number}"))
            seen += await events_until(watch, of_key(f"/w/{number}"))
            following = asyncio.create_task(events_until(watch, of_key(f"/w/{number}+")))
            await getattr(server, way)()
            await server.start()
            await persistent_txn(store, put(f"/w/{number}+"))
            seen += await following
        seen += await events_until_end(watch, store, "/w/")
    assert [key for key, _ in shown(seen)] == [f"{n}{mark}" for n in range(3) for mark in ("", "+")]


@ways
async def test_watch_survives_restart_and_compaction(new_server: Callable[..., EtcdServer], way: str) -> None:
    """History that was compacted during the restart is replaced by the difference."""
    async with (
        new_server() as server,
        Proxy(server.endpoint) as proxy,
        EtcdMetastore(settings_for(server.endpoint)) as store,
        EtcdMetastore(settings_for(proxy.endpoint)) as watching,
    ):
        for key in ("changed", "deleted"):
            await store.txn(put(f"/w/{key}", b"0"))
        watch = watching.watch("/w/", after=await store.range("/w/"))
        await store.txn(put("/w/changed", b"1"))
        assert shown(await events_until(watch, lambda _: True)) == [("changed", b"1")]
        await proxy.refuse()
        await getattr(server, way)()
        await server.start()
        await store.txn(put("/w/changed", b"2"))
        await store.txn(put("/w/changed", b"3"))
        last = await store.txn(delete("/w/deleted"))
        await compact_etcd(server.endpoint, last.revision)
        await proxy.accept()
        assert shown(await events_until_end(watch, store, "/w/")) == [("changed", b"3"), ("deleted", None)]


@ways
async def test_acknowledged_writes_survive(new_server: Callable[..., EtcdServer], way: str) -> None:
    """Writes acknowledged before and between restarts are kept."""
    acknowledged: set[str] = set()
    written, stop = asyncio.Event(), asyncio.Event()

    async def write(store: Metastore) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with contextlib.suppress(UnreachableError):
                await store.txn(put(f"/w/{number:05}"))
                acknowledged.add(f"/w/{number:05}")
                written.set()

    async with new_server() as server, EtcdMetastore(settings_for(server.endpoint)) as store:
        writing = asyncio.create_task(write(store))
        for _ in range(2):
            written.clear()
            await written.wait()
            await getattr(server, way)()
            await server.start()
        stop.set()
        await writing
        kept = {kv.key for kv in (await store.range("/w/")).kvs}
    assert len(acknowledged) > 2
    assert acknowledged <= kept


async def test_watch_disconnects_from_a_server_that_shuts_down(new_server: Callable[..., EtcdServer]) -> None:
    """A watch disconnects when the server shuts down, so the shutdown does not wait five seconds for it."""
    server = new_server(fsync=False)
    async with server, EtcdMetastore(settings_for(server.endpoint, progress_interval=60)) as store:
        watch = store.watch("", after=await store.range(""))
        await store.txn(put("a"))
        await events_until(watch, lambda event: event.key == "a")
        following = asyncio.create_task(events_until(watch, lambda event: event.key == "b"))
        async with asyncio.timeout(4):
            await server.terminate()
        await server.start()
        await store.txn(put("b"))
        assert [key for key, _ in shown(await following)] == ["b"]


async def test_lease_survives_a_restart(new_server: Callable[..., EtcdServer]) -> None:
    """A lease and its keys survive a server restart."""
    async with new_server() as server, EtcdMetastore(settings_for(server.endpoint)) as store:
        lease = await store.lease(60)
        await store.txn(put("a", b"", lease=lease.id))
        await server.terminate()
        await server.start()
        assert await lease.refresh()
        await lease.revoke()
        assert await store.get("a") is None


async def test_another_etcd_is_refused_until_the_old_one_is_forgotten(new_server: Callable[..., EtcdServer]) -> None:
    """An empty etcd at the same address gets no request until the caller accepts it."""
    first = new_server()
    async with EtcdMetastore(settings_for(first.endpoint)) as store:
        async with first:
            await store.txn(put("/a"))
            known = await store.cluster_id()
        async with new_server(ports=(first.client_port, first.peer_port)):
            with pytest.raises(ClusterMismatchError):
                await store.get("/a")
            await store.forget()
            assert await store.get("/a") is None
            assert await store.cluster_id() != known
            await store.txn(put("/b"))

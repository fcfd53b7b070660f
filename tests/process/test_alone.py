"""Faults of single processes of a store, and stores with a wrong directory, name or certificate."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from evenkeel_raft.net.peer_tls import TlsFiles
from tests.process.process_cluster import ProcessCluster, StoreProcesses, end
from tests.process.register_load import Load
from tests.process.test_moves import finish
from tests.raft_net.test_peer_tls import Authority

NewCluster = Callable[..., Awaitable[ProcessCluster]]


async def leader(cluster: ProcessCluster) -> StoreProcesses:
    """Return the leader of the first partition according to etcd."""
    await cluster.until(cluster.leader)
    return cluster.stores[await cluster.leader()]


async def moved_from(cluster: ProcessCluster, store: StoreProcesses) -> None:
    async def elsewhere() -> bool:
        return await leader(cluster) is not store

    await cluster.until(elsewhere)


@pytest.mark.parametrize("which", ["state_machine", "sidecar"])
async def test_one_process_of_a_store(new_cluster: NewCluster, which: str) -> None:
    """If only the state machine or only the sidecar of the leader is killed or paused, another store leads."""
    cluster = await new_cluster(stores=3, partitions=2)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        for what in (signal.SIGKILL, signal.SIGSTOP):
            store = await leader(cluster)
            process = store.state_machine if which == "state_machine" else store.sidecar
            assert process is not None
            os.kill(process.pid, what)
            await moved_from(cluster, store)
            await load.goes_on(100)
            if what is signal.SIGSTOP:
                os.kill(process.pid, signal.SIGCONT)
            else:
                await process.wait()
                await (store.start_state_machine() if which == "state_machine" else store.start_sidecar())
            await load.goes_on()
            await cluster.until_ready(store)
    await finish(cluster, load)


async def test_an_idle_leader_without_quorum_steps_down(new_cluster: NewCluster) -> None:
    """When both other stores are killed, the leader of a hibernated group steps down and reports the reason."""
    cluster = await new_cluster(stores=3, partitions=1)
    await cluster.reconcile(3)
    await cluster.until_settled()
    left = await leader(cluster)

    async def asleep() -> bool:
        status = await left.status()
        return status is not None and status["awake"] == 0

    await cluster.until(asleep)
    await asyncio.gather(*(store.end() for store in cluster.stores.values() if store is not left))

    async def stepped_down() -> bool:
        status = await left.status()
        return status is not None and status["replicas"][0]["role"] != "leader" and not await cluster.leader()

    await cluster.until(stepped_down, within=20)

    async def reported() -> bool:
        status = await left.status()
        return status is not None and "a majority of the voters" in str(status["problems"])

    await cluster.until(reported)


async def test_stores_end_in_good_order(new_cluster: NewCluster) -> None:
    """On SIGTERM, the state machine first, both processes soon exit with 0 and clients are served."""
    cluster = await new_cluster(stores=3, partitions=3)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        for name in sorted(cluster.stores):
            store = cluster.stores[name]
            began = time.perf_counter()
            for process in (store.state_machine, store.sidecar):
                assert process is not None
                await end(process, signal.SIGTERM)
                assert process.returncode == 0, store.log()
                await load.goes_on(20, within=10)
            assert time.perf_counter() - began < 20
            assert await cluster.volume(name) == "", "it should not be registered any more"
            await store.start()
            await cluster.until_registered(3)
            await cluster.until_ready(store)
    await finish(cluster, load)


async def test_swapped_disks_are_refused(new_cluster: NewCluster) -> None:
    """Stores with swapped directories refuse to start and name the owner; with their own they serve again."""
    cluster = await new_cluster(stores=3, partitions=2)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        await cluster.until_settled()
    one, two = cluster.stores["s1"], cluster.stores["s2"]
    await asyncio.gather(one.end(), two.end())
    swap(one.directory / "raft", two.directory / "raft")
    for store, owner in ((one, "s2"), (two, "s1")):
        await store.start_sidecar()
        assert store.sidecar is not None
        assert await asyncio.wait_for(store.sidecar.wait(), 20) == 1
        assert f"belongs to store {owner}, but this is store {store.name}" in store.log()
    swap(one.directory / "raft", two.directory / "raft")
    await asyncio.gather(one.start(), two.start())
    await finish(cluster, load)


def swap(one: Path, two: Path) -> None:
    aside = one.with_name("aside")
    shutil.move(one, aside)
    shutil.move(two, one)
    shutil.move(aside, two)


async def test_a_second_process_of_the_same_name(new_cluster: NewCluster) -> None:
    """It cannot lock the directory; with its own directory it waits until the name is free."""
    cluster = await new_cluster(stores=1, partitions=1)
    await cluster.reconcile(1)
    await cluster.until_settled()
    first = cluster.stores["s1"]
    twin = StoreProcesses("s1", cluster.directory / "twin", (cluster.etcd.endpoint,))
    try:
        twin.directory.mkdir()
        (twin.directory / "raft").symlink_to(first.directory / "raft")
        await twin.start_sidecar()
        assert twin.sidecar is not None
        assert await asyncio.wait_for(twin.sidecar.wait(), 20) == 1
        assert "another process has this log open" in twin.log()
        (twin.directory / "raft").unlink()
        await twin.start()

        async def waits() -> bool:
            status = await twin.status()
            return status is not None and status["metastore"] == "unregistered"

        await cluster.until(waits)
        status = await twin.status()
        assert status is not None
        assert "another process is registered as store s1" in status["metastore_why"]
        assert status["replicas"] == []
        volume = await cluster.volume("s1")
        await first.end()

        async def took_over() -> bool:
            return await cluster.volume("s1") not in ("", volume)

        await cluster.until(took_over)
    finally:
        await twin.end()


async def test_a_store_with_an_untrusted_certificate(new_cluster: NewCluster, tmp_path: Path) -> None:
    """Stores that trust each other serve; the other one is rejected, and both sides log why."""
    (tmp_path / "other").mkdir()
    ours, other = Authority(tmp_path, "ca"), Authority(tmp_path / "other", "ca")
    cluster = await new_cluster(stores=0, partitions=1)
    await cluster.add("s1", flags=tls_flags(ours.issue("s1")))
    await cluster.add("s2", flags=tls_flags(ours.issue("s2")))
    await cluster.add("s3", flags=tls_flags(other.issue("s3")))
    await cluster.until_registered(3)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        for name, strangers in (("s1", {"s3"}), ("s2", {"s3"}), ("s3", {"s1", "s2"})):
            status = await cluster.stores[name].status()
            assert status is not None
            assert {peer for peer, state in status["peers"].items() if state != "connected"} == strangers
        metrics = (await asyncio.to_thread(cluster.stores["s3"].read, "/metrics")).decode()
        assert 'evenkeel_raft_dropped_connections_total{reason="tls"}' in metrics
        await cluster.stores["s3"].end()
        cluster.stores["s3"].flags = tls_flags(ours.issue("s3"))
        await cluster.stores["s3"].start()
    await finish(cluster, load)


def tls_flags(files: TlsFiles) -> tuple[str, ...]:
    return ("--tls-ca", str(files.ca), "--tls-cert", str(files.cert), "--tls-key", str(files.key))

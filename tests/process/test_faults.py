"""Processes are killed and paused at every stage of a configuration change, which completes nevertheless."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from evenkeel.metastore.metastore_api import Snapshot
from evenkeel.protocol.partition_view import PartitionView
from tests.process.process_cluster import KEYS, ProcessCluster, StoreProcesses
from tests.process.register_load import Load
from tests.process.test_moves import finish

NewCluster = Callable[..., Awaitable[ProcessCluster]]

ASSIGNMENTS = f"{KEYS.root}partition.assignments."
STAGES = {"catching up": ".pending/", "locked": ".pending.lock/", "switched": ".stable/"}
"""The stages, each with the key that is written when it is reached."""
VICTIMS = {"leader": 5, "follower": 3, "newcomer": 4}
"""The targets, each with the desired number of replicas. With four, three are voters and the new one is a learner."""


async def reaches(cluster: ProcessCluster, after: Snapshot, stage: str) -> None:
    """Wait for a stage of a change with a watch, because stages may be short."""
    try:
        async with asyncio.timeout(30):
            async for batch in cluster.metastore.watch(ASSIGNMENTS, after=after):
                if any(STAGES[stage] in event.key and event.kv is not None for event in batch.events):
                    return
    except TimeoutError:
        raise AssertionError(f"no change reached stage {stage}\n{await cluster.describe()}") from None


async def choose(cluster: ProcessCluster, victim: str, before: PartitionView) -> StoreProcesses:
    """Return the store to kill or pause."""
    leader = await cluster.leader()
    assert before.stable is not None
    holders = sorted(peer.store for peer in before.stable.peers)
    match victim:
        case "leader":
            name = leader or holders[0]
        case "follower":
            name = next(store for store in holders if store != leader)
        case _:
            now = (await cluster.snapshot()).partition(0)
            name = min({peer.store for peer in now.peers()} - set(holders))
    return cluster.stores[name]


async def hit(store: StoreProcesses, what: signal.Signals) -> None:
    """Kill and restart both processes, or pause them for longer than an election."""
    if what is signal.SIGKILL:
        await store.end()
        await store.start()
    else:
        store.send(signal.SIGSTOP)
        await asyncio.sleep(3.0)
        store.send(signal.SIGCONT)


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_faults_at_every_stage(new_cluster: NewCluster, what: signal.Signals) -> None:
    """Faults of leader, follower and new replica at each stage: every change completes, and clients are served."""
    cluster = await new_cluster(stores=5, partitions=1)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        for stage, (victim, replicas) in itertools.product(STAGES, VICTIMS.items()):
            before = (await cluster.snapshot()).partition(0)
            quiet = await cluster.metastore.range(ASSIGNMENTS)
            await cluster.reconcile(replicas)
            await reaches(cluster, quiet, stage)
            await hit(await choose(cluster, victim, before), what)
            await cluster.until_settled()
            await load.goes_on()
    await finish(cluster, load)


async def test_faults_during_a_snapshot_transfer(new_cluster: NewCluster) -> None:
    """A long snapshot transfer is resumed or restarted after any store is killed."""
    cluster = await new_cluster(stores=4, partitions=1, flags=("--bytes-per-second", "400000", "--keep-log-bytes", "1"))
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        await load.fill(0, megabytes=2)
        for victim in VICTIMS:
            before = (await cluster.snapshot()).partition(0)
            await cluster.reconcile(4)

            async def filling() -> bool:
                statuses = [await store.status() for store in cluster.stores.values()]
                return any("filling " in str(status) for status in statuses)

            await cluster.until(filling)
            await hit(await choose(cluster, victim, before), signal.SIGKILL)
            await cluster.until_settled()
            await cluster.reconcile(3)
            await cluster.until_settled()
            await load.goes_on()
    await finish(cluster, load)


async def test_etcd_restarts_and_hangs_in_mid_change(new_cluster: NewCluster) -> None:
    """Without etcd, clients are served and nothing changes; afterwards the change continues."""
    cluster = await new_cluster(stores=5, partitions=3)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        for replicas, away in ((5, cluster.etcd.kill), (3, cluster.etcd.terminate)):
            await cluster.reconcile(replicas)
            await away()
            await load.goes_on(100)
            await cluster.etcd.start()
            await cluster.until_settled()
        await cluster.reconcile(5)
        cluster.etcd.pause()
        await load.goes_on(100)
        await asyncio.sleep(12)  # longer than the leases of the stores
        await load.goes_on()
        cluster.etcd.resume()
        await cluster.until_settled()
    await finish(cluster, load)


async def test_stores_start_without_etcd(new_cluster: NewCluster) -> None:
    """Stores that restart while etcd is down find each other and serve."""
    cluster = await new_cluster(stores=3, partitions=2)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        await cluster.etcd.terminate()
        await asyncio.gather(*(store.end() for store in cluster.stores.values()))
        await asyncio.gather(*(store.start() for store in cluster.stores.values()))
        await load.goes_on(100)
        await cluster.etcd.start()
    await finish(cluster, load)


async def test_an_empty_etcd_deletes_nothing(new_cluster: NewCluster) -> None:
    """Sidecars reject an etcd that lost its contents, report it, keep every replica and keep serving."""
    cluster = await new_cluster(stores=3, partitions=2)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        await cluster.until_settled()
        await cluster.replace_etcd()

        async def mismatched() -> bool:
            statuses = [await store.status() for store in cluster.stores.values()]
            return all(status is not None and status["metastore"] == "mismatch" for status in statuses)

        await cluster.until(mismatched)
        await load.goes_on(100)
        for store in cluster.stores.values():
            status: Any = await store.status()
            assert len(status["replicas"]) == 2, status
            await store.end()
            await store.start()
        await cluster.until(mismatched)
        await load.goes_on()
    await load.check()

"""Processes die and hang at every stage of a change; whoever is left, or comes back, carries it to its end."""

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
"""Each by the key that is written when it is reached."""
VICTIMS = {"leader": 5, "follower": 3, "newcomer": 4}
"""Each with how many replicas there are to be when it is hit. Three vote of four: the newcomer is a learner."""


async def reaches(cluster: ProcessCluster, after: Snapshot, stage: str) -> None:
    """Wait for a stage of a change, by what the watch shows: stages may be short."""
    try:
        async with asyncio.timeout(30):
            async for batch in cluster.metastore.watch(ASSIGNMENTS, after=after):
                if any(STAGES[stage] in event.key and event.kv is not None for event in batch.events):
                    return
    except TimeoutError:
        raise AssertionError(f"nobody got to {stage}\n{await cluster.describe()}") from None


async def choose(cluster: ProcessCluster, victim: str, before: PartitionView) -> StoreProcesses:
    """The store to hit."""
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
    """Kill both processes and start them again, or stop them for longer than an election takes."""
    if what is signal.SIGKILL:
        await store.end()
        await store.start()
    else:
        store.send(signal.SIGSTOP)
        await asyncio.sleep(3.0)
        store.send(signal.SIGCONT)


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_faults_at_every_stage(new_cluster: NewCluster, what: signal.Signals) -> None:
    """Leader, follower and newcomer are hit at each stage; every change ends, and clients are served throughout."""
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


async def test_faults_while_a_replica_is_filled(new_cluster: NewCluster) -> None:
    """A snapshot that takes long is resumed, or begun again, whoever is killed meanwhile."""
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
    """Without etcd clients are served and nothing changes; when it is back, the change goes on."""
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
    """All stores are killed and come back while etcd is away: they find each other and serve."""
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
    """An etcd that lost its contents is not believed: sidecars say so, keep every replica, and serve on."""
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

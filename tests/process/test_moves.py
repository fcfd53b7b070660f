"""Replicas move between real processes while clients read and write."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial

from evenkeel.protocol.records import Retarget
from tests.process.process_cluster import ProcessCluster
from tests.process.register_load import Load

NewCluster = Callable[..., Awaitable[ProcessCluster]]


async def finish(cluster: ProcessCluster, load: Load) -> None:
    """Check that the last target is reached, no replica is left behind, and no write was lost."""
    await cluster.until_settled()
    await load.check()
    await load.check_replicas()
    await cluster.until(partial(nothing_is_left, cluster))


async def nothing_is_left(cluster: ProcessCluster) -> bool:
    """Whether every running replica is on a store of the target."""
    return not await cluster.leftovers()


async def test_replicas_three_five_three(new_cluster: NewCluster) -> None:
    """Every partition gets two more replicas and loses them again."""
    cluster = await new_cluster(stores=5, partitions=4)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        for replicas in (5, 3):
            await cluster.reconcile(replicas)
            await cluster.until_settled()
            await load.goes_on()
    await finish(cluster, load)


async def test_every_store_is_replaced(new_cluster: NewCluster) -> None:
    """Stores are replaced one by one until none of the first is left."""
    cluster = await new_cluster(stores=3, partitions=3)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        for number in (1, 2, 3):
            await cluster.add(f"s{number + 3}")
            await cluster.until_registered(4)
            await cluster.drain(f"s{number}")
            await cluster.reconcile(3)
            await cluster.until_settled()
            await load.goes_on()
            await cluster.retire(f"s{number}")
    await finish(cluster, load)


async def test_a_store_restarts_with_an_empty_disk(new_cluster: NewCluster) -> None:
    """The store has a new volume: its replicas are rebuilt, and no write is lost."""
    cluster = await new_cluster(stores=3, partitions=3)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        await cluster.until_settled()
        volume = await cluster.volume("s2")
        await cluster.stores["s2"].wipe()
        await load.goes_on()
        await cluster.stores["s2"].start()

        async def back() -> bool:
            return await cluster.volume("s2") not in ("", volume)

        await cluster.until(back)
        await cluster.reconcile(3)
        await cluster.until_settled()
        await load.goes_on()
    await finish(cluster, load)


async def test_retargets_in_mid_catch_up(new_cluster: NewCluster) -> None:
    """In each retarget mode, targets that change during catch-up end at the last target."""
    cluster = await new_cluster(stores=5, partitions=3)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        for retarget in Retarget:
            for replicas in (5, 1, 4, 3):
                await cluster.reconcile(replicas, retarget=retarget)
            await cluster.until_settled()
            await load.goes_on()
    await finish(cluster, load)


async def test_retargets_during_a_snapshot_transfer(new_cluster: NewCluster) -> None:
    """An obsolete transfer is cancelled, except with Queue, where it is completed and the replica removed."""
    cluster = await new_cluster(stores=5, partitions=1, flags=("--bytes-per-second", "400000", "--keep-log-bytes", "1"))
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        await load.fill(0, megabytes=4)
        for retarget in Retarget:
            await cluster.reconcile(4, retarget=retarget)
            await cluster.until(partial(being_filled, cluster))
            before = await called_off(cluster)
            await cluster.reconcile(3, retarget=retarget)
            await cluster.until_settled()
            await cluster.until(partial(nothing_is_left, cluster))
            wasted = await called_off(cluster) - before
            assert wasted == 0 if retarget is Retarget.QUEUE else 0 < wasted < 4 << 20, (retarget, wasted)
            await load.goes_on()
    await finish(cluster, load)


async def being_filled(cluster: ProcessCluster) -> bool:
    """Whether a snapshot has arrived in part."""
    statuses = [await store.status() for store in cluster.stores.values()]
    return bool(re.search(r"'filling [1-9][0-9]?%'", str(statuses)))


async def called_off(cluster: ProcessCluster) -> float:
    """Return the snapshot bytes that were sent but not used."""
    pages = [(await asyncio.to_thread(store.read, "/metrics")).decode() for store in cluster.stores.values()]
    found = re.findall(r"^evenkeel_raft_wasted_snapshot_bytes_total (\S+)$", "\n".join(pages), re.MULTILINE)
    assert len(found) == len(cluster.stores)
    return sum(map(float, found))


async def test_a_dropped_table_leaves_nothing(new_cluster: NewCluster) -> None:
    """Every store deletes its data, and the tombstone is removed."""
    cluster = await new_cluster(stores=3, partitions=4)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
    await cluster.drop()
    for store in cluster.stores.values():
        status = await store.status()
        assert status is not None
        assert status["replicas"] == []

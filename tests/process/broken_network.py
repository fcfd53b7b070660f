"""Run by `test_network.py` in a network namespace: lost packets, and a store whose packets are dropped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.process import firewall
from tests.process.process_cluster import ProcessCluster
from tests.process.register_load import Load
from tests.process.test_moves import finish

NewCluster = Callable[..., Awaitable[ProcessCluster]]


@pytest.fixture(autouse=True)
def healed() -> Iterator[None]:
    yield
    firewall.heal()


async def test_packets_are_lost(new_cluster: NewCluster) -> None:
    """With a packet loss of 5%, replicas are added and removed, and clients are served."""
    cluster = await new_cluster(stores=5, partitions=2, own_groups=True)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        await load.goes_on()
        firewall.lose(0.05, cluster.stores.values())
        for replicas in (5, 3):
            await cluster.reconcile(replicas)
            await cluster.until_settled()
            await load.goes_on()
        while firewall.dropped() <= 100:  # on a busy machine the moves alone may send few packets
            await load.goes_on()
    await finish(cluster, load)


async def test_a_leader_whose_packets_are_dropped(new_cluster: NewCluster) -> None:
    """The others elect another leader; when the network heals it becomes a follower, also during a change."""
    cluster = await new_cluster(stores=5, partitions=1, own_groups=True)
    await cluster.reconcile(3)
    async with Load(cluster) as load:
        for replicas in (5, 3):
            await load.goes_on()
            await cluster.until(cluster.leader)
            before = await cluster.leader()
            await cluster.reconcile(replicas)
            firewall.mute(cluster.stores[before], [store for name, store in cluster.stores.items() if name != before])

            async def another_leads(before: str = before) -> bool:
                return await cluster.leader() != before

            await cluster.until(another_leads)
            await load.goes_on()
            firewall.heal()
            await cluster.until_settled()
    await finish(cluster, load)

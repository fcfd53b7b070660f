"""The controller with the sidecars' agents on modelled raft groups: both halves of the protocol, and users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from evenkeel.controller.controller import Controller
from evenkeel.local.local_resources import ClusterResources, LocalResources
from evenkeel.model.resource_loading import load_yaml
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table, TableStatus
from evenkeel.protocol.keys import Keys
from tests.controller.support import conditions_of, store_cluster, table
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import Cluster

WITHIN: Final = 10.0
"""Seconds from a failure to the status that reports it."""


class Whole(Cluster):
    """Stores, resources and a controller in the same virtual time."""

    def __init__(self, stores: int) -> None:
        super().__init__(" ".join(f"main-{number}" for number in range(stores)))
        self.resources = LocalResources(self.metastore)
        self.controller = Controller(
            self.metastore,
            keys=Keys(namespace="shop", store_cluster="main"),
            resources=ClusterResources(self.resources, "main"),
            holder="tests",
            clock=self.clock,
            wall_clock=self.clock.now,
        )
        self.network.dropped = lambda name: self.mvcc.get(KEYS.table(name)) is None

    async def turn(self) -> None:
        """Run everything that can run now, including rebalancers in their threads."""
        await super().turn()
        while not self.controller.idle:
            await asyncio.sleep(0)
            await super().turn()

    async def conditions(self, name: str = "orders") -> dict[str, tuple[str, str]]:
        return conditions_of((await self.resources.need(Table, name)).status)

    async def balanced(self, *, seconds: float = 120.0) -> None:
        """Wait until the newest spec is applied."""
        for _ in range(round(seconds)):
            await self.pass_time(1)
            found = await self.resources.need(Table, "orders")
            status = found.status
            seen = status is not None and status.observed_generation == found.metadata.generation
            if seen and {conditions_of(status)["Ready"][0], conditions_of(status)["Balanced"][0]} == {"True"}:
                return
        raise AssertionError(f"not balanced in {seconds:g} s: {await self.conditions()}")

    async def outage(self, reason: str) -> None:
        """Wait until the table is not Ready for this reason."""
        for _ in range(round(WITHIN)):
            await self.pass_time(1)
            if (await self.conditions())["Ready"] == ("False", reason):
                return
        raise AssertionError(f"not {reason} after {WITHIN:g} s: {await self.conditions()}")

    async def status(self, name: str = "orders") -> TableStatus:
        status = (await self.resources.need(Table, name)).status
        assert status is not None
        return status

    async def change(self, kind: Any, name: str, **spec: Any) -> None:
        await self.resources.change(kind, name, lambda document: document["spec"].update(spec))

    async def held(self) -> dict[str, int]:
        """Return how many replicas are on each store's disk."""
        return {store.name: len(store.disk.replicas) for store in self.stores.values()}

    async def led(self) -> dict[str, int]:
        """Return how many partitions each store leads in the modelled groups."""
        partitions = {p for store in self.stores.values() for p in store.disk.replicas}
        leaders = [self.leader(partition) for partition in partitions]
        return {name: leaders.count(name) for name in self.stores}


@asynccontextmanager
async def whole(stores: int, text: str) -> AsyncIterator[Whole]:
    async with Whole(stores) as entered:
        assert isinstance(entered, Whole)
        found = entered
        for one in load_yaml(f"{store_cluster(stores)}---\n{text}"):
            await found.resources.apply(one)
        running = asyncio.ensure_future(found.controller.run())
        await found.started()
        await found.balanced()
        yield found
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_tables_life() -> None:
    """A table is created, spread over more stores, led evenly, drained, and dropped to the last replica."""
    async with whole(3, table(partitions=6, more=", undeleteFor: 0s")) as cluster:
        assert await cluster.held() == {"main-0": 6, "main-1": 6, "main-2": 6}
        for number in (3, 4):
            cluster.add(f"main-{number}")
        await cluster.change(StoreCluster, "main", stores=5)
        await cluster.pass_time(10)
        await cluster.balanced()
        assert sorted((await cluster.held()).values()) == [3, 3, 4, 4, 4]
        await cluster.pass_time(30)
        assert max((await cluster.led()).values()) <= 2
        await cluster.change(StoreCluster, "main", stores=4)
        await cluster.pass_time(5)
        await cluster.balanced()
        assert (await cluster.held())["main-4"] == 0
        await cluster.resources.delete(Table, "orders")
        await cluster.pass_time(20)
        assert await cluster.resources.get(Table, "orders") is None
        assert set((await cluster.held()).values()) == {0}


async def test_a_deleted_table_and_back() -> None:
    """Its replicas stay on disk, leave a draining store, serve again when restored, and are removed in the end."""
    async with whole(4, table(partitions=6, more=", undeleteFor: 10m")) as cluster:
        key = f"orders.{(await cluster.resources.need(Table, 'orders')).metadata.uid}"
        await cluster.resources.delete(Table, "orders")
        await cluster.pass_time(20)
        assert await cluster.resources.get(Table, "orders") is None
        assert sum((await cluster.held()).values()) == 18
        await cluster.change(StoreCluster, "main", stores=3)
        await cluster.pass_time(60)
        assert await cluster.held() == {"main-0": 6, "main-1": 6, "main-2": 6, "main-3": 0}
        asked = {"evenkeel.dev/undelete": key}
        await cluster.resources.change(
            StoreCluster, "main", lambda document: document["metadata"].setdefault("annotations", {}).update(asked)
        )
        await cluster.pass_time(5)
        await cluster.balanced()
        await cluster.resources.delete(Table, "orders")
        await cluster.pass_time(500)
        assert sum((await cluster.held()).values()) == 18
        await cluster.pass_time(200)
        assert set((await cluster.held()).values()) == {0}


async def test_a_store_dies_for_good() -> None:
    """Its replicas are replaced after `lostAfter`; when it returns without data, it gets replicas again."""
    async with whole(4, table(partitions=6, more=", movement: {lostAfter: 1m}")) as cluster:
        await cluster["main-2"].kill()
        await cluster.pass_time(30)
        assert (await cluster.conditions())["Degraded"] == ("True", "StoresLost")
        await cluster.pass_time(60)
        await cluster.balanced()
        assert (await cluster.conditions())["Degraded"] == ("False", "AsExpected")
        cluster["main-2"].wipe()
        cluster["main-2"].start()
        await cluster.pass_time(10)
        await cluster.balanced()
        assert sorted((await cluster.held()).values()) == [4, 4, 5, 5]


async def test_two_of_three_stores_die() -> None:
    """No partition has a quorum, whichever store led; with one store back all are available again."""
    async with whole(3, table(partitions=6)) as cluster:
        for name in ("main-0", "main-1"):
            await cluster[name].kill()
        await cluster.outage("NoQuorum")
        assert (await cluster.status()).leaderless == 6
        cluster["main-1"].start()
        await cluster.pass_time(10)
        assert (await cluster.conditions())["Ready"] == ("True", "AsExpected")


async def test_stores_come_back_without_a_quorum() -> None:
    """All stores were killed and only one leader comes back: it withdraws its predecessor's report."""
    async with whole(3, table(partitions=6)) as cluster:
        for store in cluster.stores.values():
            await store.kill()
        await cluster.outage("NoQuorum")
        for name in ("main-0", "main-1", "main-2"):
            cluster[name].start()
            await cluster.pass_time(5)
            ready = (await cluster.conditions())["Ready"]
            assert ready == (("False", "NoQuorum") if name == "main-0" else ("True", "AsExpected"))


async def test_a_sole_replica_comes_back_empty() -> None:
    """Its store is registered under the same name on another volume: the lost rows are reported."""
    async with whole(1, table(partitions=2, replicas=1)) as cluster:
        disk = cluster["main-0"].disk
        await cluster["main-0"].kill()
        cluster["main-0"].wipe()
        cluster["main-0"].start()
        await cluster.outage("DataLost")
        await cluster["main-0"].kill()
        cluster["main-0"].disk = disk
        await cluster.pass_time(10)
        cluster["main-0"].start()
        await cluster.pass_time(10)
        assert (await cluster.conditions())["Ready"] == ("True", "AsExpected")

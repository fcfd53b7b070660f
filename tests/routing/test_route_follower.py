"""Routes when another etcd cluster answers than before."""

from __future__ import annotations

import asyncio

from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import Adoption, Leader, StoreRecord, encode
from evenkeel.routing.route_follower import follow
from evenkeel.routing.routing_table import RoutingTable
from evenkeel.runtime.clock import VirtualClock
from tests.raft_agent.flaky import FlakyMetastore

KEYS = Keys(namespace="shop", store_cluster="main")


async def pass_time(clock: VirtualClock, seconds: float) -> None:
    for _ in range(round(seconds)):
        clock.advance(1)
        for _ in range(20):
            await asyncio.sleep(0)


async def announce(metastore: MemoryMetastore, store: str) -> None:
    record = encode(StoreRecord(volume=f"v-{store}", flight=f"grpc://{store}:7410"))
    await metastore.txn(Txn(success=(Put(KEYS.store(store), record),)))


async def test_routes_stay_until_another_etcd_is_adopted() -> None:
    """An empty etcd removes no routes; one that a user adopted does."""
    clock = VirtualClock()
    old, new = (MemoryMetastore(clock=clock, cluster_id=number) for number in (1, 0xBEEF))
    metastore, routes = FlakyMetastore(old), RoutingTable(KEYS)
    await announce(old, "a")
    await old.txn(Txn(success=(Put(KEYS.leader("orders.1", 0), encode(Leader("a", 1))),)))
    following = asyncio.ensure_future(follow(metastore, routes, clock=clock))
    try:
        await pass_time(clock, 2)
        assert set(routes.stores()) == {"a"}
        metastore.become(new)
        await old.txn(Txn(success=(Delete(KEYS.root, prefix=True),)))  # ends the watches of the old one
        await pass_time(clock, 30)
        assert routes.leader("orders.1", 0) == "a"
        await announce(new, "b")
        await new.txn(Txn(success=(Put(KEYS.adoption, encode(Adoption(cluster="beef", request="beef"))),)))
        await pass_time(clock, 30)
        assert set(routes.stores()) == {"a", "b"}, "an unregistered store keeps its address"
        assert routes.leader("orders.1", 0) == ""
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

"""Stores on nodes that take no more pods."""

from __future__ import annotations

import pytest

from evenkeel.errors import FencedError, UnreachableError
from evenkeel.kube.object_kinds import Object
from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Txn, TxnResult
from evenkeel.metastore.operator_epoch import FencedMetastore, acquire_epoch
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import InhibitionOrder, decode
from evenkeel.runtime.clock import VirtualClock
from evenkeel_operator.reconcilers.cordons import EXTEND_SECONDS, Cordons, on_cordoned_nodes

KEYS = Keys(namespace="shop", store_cluster="main")


def pod(name: str, node: str) -> Object:
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"nodeName": node}, "status": {}}


PODS = [pod("main-0", "a"), pod("main-1", "b"), pod("main-2", "")]


@pytest.mark.parametrize(
    ("closed", "expected"),
    [
        ((), {}),
        (("a",), {"main-0": "uid-main-0"}),
        (("c",), {}),
        (("a", "b"), {}),
    ],
    ids=["no node is closed", "one is", "another is", "all are"],
)
def test_whose_node_is_closed(closed: tuple[str, ...], expected: dict[str, str]) -> None:
    """Pods that are on such a node, by what tells them from their successors; nobody where nobody else could lead."""
    nodes = {name: {"spec": {"unschedulable": name in closed}} for name in "abc"}
    assert on_cordoned_nodes(PODS, nodes) == expected


def test_nodes_that_nobody_may_read() -> None:
    """Nothing is known of them, so nothing is done."""
    assert on_cordoned_nodes(PODS, {}) == {}


async def orders(metastore: MemoryMetastore) -> dict[str, str]:
    found = (await metastore.range(KEYS.inhibitions())).kvs
    return {kv.key.removeprefix(KEYS.inhibitions()): decode(InhibitionOrder, kv.value, key=kv.key).pod for kv in found}


async def in_charge(metastore: MemoryMetastore) -> FencedMetastore:
    """The way of whoever is in charge of the StoreCluster."""
    return FencedMetastore(metastore, await acquire_epoch(metastore, KEYS.epoch, "tests"))


async def test_orders_follow_the_nodes() -> None:
    """They are there for whom they should be, and name the pod that is meant."""
    metastore, cordons = MemoryMetastore(), Cordons()
    way = await in_charge(metastore)
    await cordons.reconcile(way, KEYS, {"main-0": "u0", "main-1": "u1"})
    assert await orders(metastore) == {"main-0": "u0", "main-1": "u1"}
    await cordons.reconcile(way, KEYS, {"main-1": "u2"})
    assert await orders(metastore) == {"main-1": "u2"}
    await cordons.reconcile(way, KEYS, {})
    assert await orders(metastore) == {}


async def test_nothing_is_written_twice() -> None:
    """A look that finds everything as it was only extends the lease."""
    metastore, cordons = MemoryMetastore(), Cordons()
    way = await in_charge(metastore)
    await cordons.reconcile(way, KEYS, {"main-0": "u0"})
    before = (await metastore.range(KEYS.inhibitions())).kvs
    await cordons.reconcile(way, KEYS, {"main-0": "u0"})
    assert (await metastore.range(KEYS.inhibitions())).kvs == before


async def test_orders_whose_lease_has_ended_are_given_again() -> None:
    """As when nobody could look for a while."""
    metastore, cordons = MemoryMetastore(), Cordons()
    way = await in_charge(metastore)
    await cordons.reconcile(way, KEYS, {"main-0": "u0"})
    [order] = (await metastore.range(KEYS.inhibitions())).kvs
    assert order.lease
    await cordons._orders[KEYS.root].lease.revoke()
    assert await orders(metastore) == {}
    await cordons.reconcile(way, KEYS, {"main-0": "u0"})
    assert await orders(metastore) == {"main-0": "u0"}


class Forgetful(MemoryMetastore):
    """Carries transactions out, and may lose the answers."""

    answers = True

    async def txn(self, txn: Txn) -> TxnResult:
        result = await super().txn(txn)
        if not self.answers:
            raise UnreachableError("the answer is lost")
        return result


async def test_an_order_that_may_be_out_does_not_outlive_its_node() -> None:
    """Though nobody was told that it was given, and others are extended for as long as their nodes are closed."""
    clock = VirtualClock()
    metastore, cordons = Forgetful(clock=clock), Cordons()
    way = await in_charge(metastore)
    metastore.answers = False
    with pytest.raises(UnreachableError):
        await cordons.reconcile(way, KEYS, {"main-0": "u0", "main-1": "u1"})
    assert await orders(metastore) == {"main-0": "u0", "main-1": "u1"}
    metastore.answers = True
    for _ in range(10):
        await cordons.reconcile(way, KEYS, {"main-1": "u1"})
        clock.advance(EXTEND_SECONDS)
    assert await orders(metastore) == {"main-1": "u1"}


async def test_who_is_no_longer_in_charge_gives_no_orders() -> None:
    """As an operator that was paused, and whose successor has opened the node again."""
    metastore, cordons = MemoryMetastore(), Cordons()
    way = await in_charge(metastore)
    await in_charge(metastore)
    with pytest.raises(FencedError):
        await cordons.reconcile(way, KEYS, {"main-0": "u0"})
    assert await orders(metastore) == {}


async def test_very_many_stores() -> None:
    """More than a transaction takes."""
    metastore, cordons = MemoryMetastore(), Cordons()
    way = await in_charge(metastore)
    many = {f"main-{number}": f"u{number}" for number in range(300)}
    await cordons.reconcile(way, KEYS, many)
    assert await orders(metastore) == many

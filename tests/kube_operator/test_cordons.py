"""Leadership of stores on cordoned nodes."""

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
def test_pods_on_cordoned_nodes(closed: tuple[str, ...], expected: dict[str, str]) -> None:
    """Pods on cordoned nodes are found by uid; none if no other store could lead."""
    nodes = {name: {"spec": {"unschedulable": name in closed}} for name in "abc"}
    assert on_cordoned_nodes(PODS, nodes) == expected


def test_unreadable_nodes() -> None:
    """Without access to Nodes no order is given."""
    assert on_cordoned_nodes(PODS, {}) == {}


async def orders(metastore: MemoryMetastore) -> dict[str, str]:
    found = (await metastore.range(KEYS.inhibitions())).kvs
    return {kv.key.removeprefix(KEYS.inhibitions()): decode(InhibitionOrder, kv.value, key=kv.key).pod for kv in found}


async def in_charge(metastore: MemoryMetastore) -> FencedMetastore:
    """The fenced connection of the current operator."""
    return FencedMetastore(metastore, await acquire_epoch(metastore, KEYS.epoch, "tests"))


async def test_orders_follow_the_nodes() -> None:
    """Orders exist for exactly the stores on cordoned nodes, and name their pods."""
    metastore, cordons = MemoryMetastore(), Cordons()
    way = await in_charge(metastore)
    await cordons.reconcile(way, KEYS, {"main-0": "u0", "main-1": "u1"})
    assert await orders(metastore) == {"main-0": "u0", "main-1": "u1"}
    await cordons.reconcile(way, KEYS, {"main-1": "u2"})
    assert await orders(metastore) == {"main-1": "u2"}
    await cordons.reconcile(way, KEYS, {})
    assert await orders(metastore) == {}


async def test_nothing_is_written_twice() -> None:
    """A reconciliation without a change only extends the lease."""
    metastore, cordons = MemoryMetastore(), Cordons()
    way = await in_charge(metastore)
    await cordons.reconcile(way, KEYS, {"main-0": "u0"})
    before = (await metastore.range(KEYS.inhibitions())).kvs
    await cordons.reconcile(way, KEYS, {"main-0": "u0"})
    assert (await metastore.range(KEYS.inhibitions())).kvs == before


async def test_orders_with_an_expired_lease_are_written_again() -> None:
    """An operator that could not reconcile for a while writes its orders again."""
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
    """Executes transactions, but may lose the responses."""

    answers = True

    async def txn(self, txn: Txn) -> TxnResult:
        result = await super().txn(txn)
        if not self.answers:
            raise UnreachableError("the answer is lost")
        return result


async def test_an_order_with_unknown_outcome_expires() -> None:
    """An order whose write had an unknown outcome is not extended with the others."""
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


async def test_a_fenced_operator_gives_no_orders() -> None:
    """An operator that was suspended cannot write orders after its successor took over."""
    metastore, cordons = MemoryMetastore(), Cordons()
    way = await in_charge(metastore)
    await in_charge(metastore)
    with pytest.raises(FencedError):
        await cordons.reconcile(way, KEYS, {"main-0": "u0"})
    assert await orders(metastore) == {}


async def test_very_many_stores() -> None:
    """More orders than fit into one transaction are written."""
    metastore, cordons = MemoryMetastore(), Cordons()
    way = await in_charge(metastore)
    many = {f"main-{number}": f"u{number}" for number in range(300)}
    await cordons.reconcile(way, KEYS, many)
    assert await orders(metastore) == many

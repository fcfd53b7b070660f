"""Inhibits the leadership of stores on cordoned nodes, so that leaderships move before a node drain evicts pods.

Only leaderships move. Replicas stay, because most nodes come back and volumes follow their pods. An order is a key,
`drains/<s>`, that names the pod and is bound to a lease, which every reconciliation extends. So an order ends with the
operator that gave it, with the pod, or when the node is uncordoned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from evenkeel.errors import MetastoreError
from evenkeel.kube.object_kinds import Object
from evenkeel.metastore.metastore_api import MAX_TXN_OPS, Delete, Lease, Op, Put, Txn
from evenkeel.metastore.operator_epoch import FencedMetastore
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import InhibitionOrder, encode

__all__ = ["EXTEND_SECONDS", "Cordons", "on_cordoned_nodes"]

log = logging.getLogger(__name__)

EXTEND_SECONDS: Final = 10.0
"""Time to the next reconciliation while orders exist."""
_LEASE_SECONDS: Final = 90.0
"""More than the longest time between two reconciliations, which is the longest retry interval."""


def on_cordoned_nodes(pods: Iterable[Object], nodes: Mapping[str, Object]) -> dict[str, str]:
    """Return the uids of pods on cordoned nodes, by name; none if all pods are, because one store must lead."""
    scheduled = {pod["metadata"]["name"]: pod for pod in pods if pod["spec"].get("nodeName")}
    cordoned = {
        name: str(pod["metadata"]["uid"])
        for name, pod in scheduled.items()
        if nodes.get(pod["spec"]["nodeName"], {}).get("spec", {}).get("unschedulable")
    }
    return cordoned if len(cordoned) < len(scheduled) else {}


class _Orders(msgspec.Struct):
    lease: Lease
    pods: dict[str, str]


class Cordons:
    """The current orders, by StoreCluster."""

    def __init__(self) -> None:
        self._orders: dict[str, _Orders] = {}

    async def reconcile(self, metastore: FencedMetastore, keys: Keys, pods: Mapping[str, str]) -> None:
        """Write orders for exactly these pods, given by store; MetastoreError if etcd is unavailable."""
        orders = self._orders.get(keys.root)
        if not pods:
            await self.end(keys)
            return
        if orders is None or not await orders.lease.refresh():
            orders = self._orders[keys.root] = _Orders(await metastore.lease(_LEASE_SECONDS), {})
        new = {store: pod for store, pod in pods.items() if orders.pods.get(store) != pod}
        ops: list[Op] = [Delete(keys.inhibition(store)) for store in orders.pods.keys() - pods.keys()]
        ops += [
            Put(keys.inhibition(store), encode(InhibitionOrder(pod=pod)), lease=orders.lease.id)
            for store, pod in new.items()
        ]
        try:
            for first in range(0, len(ops), MAX_TXN_OPS):
                await metastore.txn(Txn(success=tuple(ops[first : first + MAX_TXN_OPS])))
        except MetastoreError:
            # Unknown orders expire with their lease, and are written again under a new one.
            del self._orders[keys.root]
            raise
        orders.pods = dict(pods)
        for store in sorted(new):
            log.info("store %s hands over its leaderships, because its node is cordoned", store)

    async def end(self, keys: Keys) -> None:
        """Revoke all orders; if etcd is unavailable, they expire."""
        orders = self._orders.pop(keys.root, None)
        if orders is not None:
            try:
                await orders.lease.revoke()
            except MetastoreError as error:
                log.info("cannot revoke orders to lead nothing; they expire within %g s: %s", _LEASE_SECONDS, error)

"""Stores on nodes that take no more pods lead nothing: whoever drains a node finds leaderships gone before evictions.

Only leaderships go. Replicas stay, for most nodes come back, and volumes move with their pods. The orders are keys,
`drains/<s>`, bound to a lease that every look extends, and name the pod that is meant: they end with whoever gave them,
with the pod, or when the node is open again.
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
from evenkeel.protocol.records import Drain, encode

__all__ = ["EXTEND_SECONDS", "Cordons", "on_cordoned_nodes"]

log = logging.getLogger(__name__)

EXTEND_SECONDS: Final = 10.0
"""How soon to look again while orders are out."""
_LEASE_SECONDS: Final = 90.0
"""More than the longest time between two looks, which is that after failures."""


def on_cordoned_nodes(pods: Iterable[Object], nodes: Mapping[str, Object]) -> dict[str, str]:
    """UIDs of pods whose node takes no more pods, by name; none where all pods are on such nodes: someone must lead."""
    there = {pod["metadata"]["name"]: pod for pod in pods if pod["spec"].get("nodeName")}
    closed = {
        name: str(pod["metadata"]["uid"])
        for name, pod in there.items()
        if nodes.get(pod["spec"]["nodeName"], {}).get("spec", {}).get("unschedulable")
    }
    return closed if len(closed) < len(there) else {}


class _Orders(msgspec.Struct):
    lease: Lease
    pods: dict[str, str]


class Cordons:
    """The orders that are out, by StoreCluster."""

    def __init__(self) -> None:
        self._out: dict[str, _Orders] = {}

    async def keep(self, metastore: FencedMetastore, keys: Keys, pods: Mapping[str, str]) -> None:
        """Have orders out for these pods, by their stores, and for no others; MetastoreError where that has to wait."""
        orders = self._out.get(keys.root)
        if not pods:
            await self.end(keys)
            return
        if orders is None or not await orders.lease.refresh():
            orders = self._out[keys.root] = _Orders(await metastore.lease(_LEASE_SECONDS), {})
        new = {store: pod for store, pod in pods.items() if orders.pods.get(store) != pod}
        ops: list[Op] = [Delete(keys.drain(store)) for store in orders.pods.keys() - pods.keys()]
        ops += [Put(keys.drain(store), encode(Drain(pod=pod)), lease=orders.lease.id) for store, pod in new.items()]
        try:
            for first in range(0, len(ops), MAX_TXN_OPS):
                await metastore.txn(Txn(success=tuple(ops[first : first + MAX_TXN_OPS])))
        except MetastoreError:
            # Nobody knows which of them are out: what was given ends by itself, and is given anew where it is meant.
            del self._out[keys.root]
            raise
        orders.pods = dict(pods)
        for store in sorted(new):
            log.info("%s hands its leaderships over: its node takes no more pods", store)

    async def end(self, keys: Keys) -> None:
        """Have none out any more; where they cannot be taken back, they end by themselves."""
        orders = self._out.pop(keys.root, None)
        if orders is not None:
            try:
                await orders.lease.revoke()
            except MetastoreError as error:
                log.info("the order to hand over ends within %g s: %s", _LEASE_SECONDS, error)

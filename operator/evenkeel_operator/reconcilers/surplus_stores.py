"""Stores beyond the desired number: which of them still hold replicas, and which unavailable stores hold none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from evenkeel.metastore.metastore_api import KeyValue, Metastore
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreLoad, StoreState, decode, encode
from evenkeel_operator.manifests.object_names import store_name

__all__ = ["SurplusStores", "idle_stores", "read_surplus_stores"]

_NAME: Final = re.compile(rb'"store":"([^"]+)"')
"""A store's name in a record; one scan finds all names, because thousands of stores may be unavailable at once."""


class SurplusStores(msgspec.Struct, frozen=True, kw_only=True):
    """What the metastore says about the stores of a cluster beyond the desired number."""

    cluster: StoreCluster
    highest: int
    """The stores from this number on have neither a pod nor a volume."""
    keys: Keys
    stores: Mapping[str, KeyValue]
    """All keys under `stores`."""
    named: tuple[bytes, ...]
    """Records of where partitions are and will be."""
    loads: Mapping[str, KeyValue]
    """The load that the stores report."""

    def to_run(self) -> int:
        """Return the number of pods to run; a StatefulSet removes pods from the last one down.

        A store may go once it is draining, so that no plan names it, and holds no replica.
        """
        for number in reversed(range(self.cluster.spec.stores, self.highest)):
            if not self._leaves(number) or not self._holds_nothing(number):
                return number + 1
        return self.cluster.spec.stores

    def emptied(self, replicas: int) -> dict[int, str]:
        """Return the volumes of stores from `replicas` on that were drained, by number.

        A store without a record is not included: the metastore may have been lost.
        """
        found = {number: self._state(number) for number in range(replicas, self.highest)}
        return {number: state.volume for number, state in found.items() if state is not None and state.draining}

    def ended(self, number: int) -> bool:
        """Whether a store is no longer registered, and no partition names it."""
        return self.keys.store(self._name(number)) not in self.stores and self._holds_nothing(number)

    def _name(self, number: int) -> str:
        return store_name(self.cluster, number)

    def _state(self, number: int) -> StoreState | None:
        kv = self.stores.get(self.keys.store_state(self._name(number)))
        return None if kv is None else decode(StoreState, kv.value, key=kv.key)

    def _leaves(self, number: int) -> bool:
        state = self._state(number)
        return self.keys.store(self._name(number)) not in self.stores if state is None else state.draining

    def _holds_nothing(self, number: int) -> bool:
        """Whether no partition names the store, and it reports no replica."""
        name = self._name(number)
        load = self.loads.get(self.keys.load(name))
        replicas = decode(StoreLoad, load.value, key=load.key).replicas if load is not None else 0
        return not replicas and not any(encode(name) in value for value in self.named)


async def read_surplus_stores(metastore: Metastore, cluster: StoreCluster, highest: int) -> SurplusStores:
    """Read what the metastore says about surplus stores."""
    keys = Keys(namespace=cluster.metadata.namespace, store_cluster=cluster.metadata.name)
    stores = await metastore.range(keys.all_stores())
    named = await metastore.range(keys.assignments())
    numbers = range(cluster.spec.stores, highest)
    loads = [await metastore.get(keys.load(store_name(cluster, number))) for number in numbers]
    return SurplusStores(
        cluster=cluster,
        highest=highest,
        keys=keys,
        stores={kv.key: kv for kv in stores.kvs},
        named=tuple(kv.value for kv in named.kvs),
        loads={kv.key: kv for kv in loads if kv is not None},
    )


def idle_stores(away: Iterable[str], assignments: Iterable[KeyValue]) -> list[str]:
    """Return the unavailable stores that no partition is, or will be, on."""
    named = {name for kv in assignments for name in _NAME.findall(kv.value)}
    return sorted(name for name in away if name.encode() not in named)

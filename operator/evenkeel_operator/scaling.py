"""How many pods there have to be, those that leave until they hold nothing included, and how many may be away."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from evenkeel.metastore.api import KeyValue
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreState, decode, encode
from evenkeel_operator.manifests.names import store_name

__all__ = ["idle_stores", "stores_to_run"]

_NAME: Final = re.compile(rb'"store":"([^"]+)"')
"""A store's name where a record has it; all of them are found in one pass, as thousands may be away at once."""


def stores_to_run(
    cluster: StoreCluster,
    running: int,
    *,
    stores: Iterable[KeyValue],
    assignments: Iterable[KeyValue],
    keys: Keys,
) -> int:
    """The number of pods, of which `running` are there; pods go from the last one down.

    `stores` is everything under `stores`, `assignments` what partitions say of where they are and will be. A store may
    go once it was told to be emptied, so that no plan names it any more, and nothing names it.
    """
    known = {kv.key: kv for kv in stores}
    named = [kv.value for kv in assignments]
    for number in reversed(range(cluster.spec.stores, running)):
        name = store_name(cluster, number)
        if not _leaves(name, known, keys) or any(encode(name) in value for value in named):
            return number + 1
    return cluster.spec.stores


def idle_stores(away: Iterable[str], assignments: Iterable[KeyValue]) -> list[str]:
    """Those of the stores that are away that no partition is on, nor will be."""
    named = {name for kv in assignments for name in _NAME.findall(kv.value)}
    return sorted(name for name in away if name.encode() not in named)


def _leaves(name: str, known: dict[str, KeyValue], keys: Keys) -> bool:
    kv = known.get(keys.store_state(name))
    if kv is None:
        return keys.store(name) not in known
    return decode(StoreState, kv.value, key=kv.key).draining

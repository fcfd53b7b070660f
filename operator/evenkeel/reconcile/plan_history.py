"""Why a partition is where it is: what the plans that are still kept wanted of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import PlanSlice, decode
from evenkeel.protocol.stored_plan import SLICE

__all__ = ["Explained", "explain_partition"]


class Explained(msgspec.Struct, frozen=True):
    """What one plan wanted of a partition."""

    plan: int
    stores: tuple[str, ...]
    """Leader first."""
    moves: tuple[str, ...]
    """As `from -> to: reason`; none where the plan left the partition alone."""


def explain_partition(kvs: Iterable[KeyValue], partition: int, *, keys: Keys, table: str) -> list[Explained]:
    """The plans that are kept, the newest first; `kvs` holds everything about the table's plans."""
    found: list[Explained] = []
    for kv in kvs:
        number, _, index = kv.key.removeprefix(keys.plans(table)).partition("/")
        if not number.isdecimal() or index != f"{partition // SLICE:06d}":
            continue
        try:
            piece = decode(PlanSlice, kv.value, key=kv.key)
            stores = tuple(peer.store for peer in piece.target(partition))
        except (MalformedRecordError, IndexError):
            continue
        found.append(Explained(int(number), stores, piece.reasons.get(partition, ())))
    return sorted(found, key=lambda entry: -entry.plan)

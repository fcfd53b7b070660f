"""One partition's keys, read at one revision: what both halves of the protocol decide from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Compare, KeyValue
from evenkeel.protocol.keys import PartitionKeys
from evenkeel.protocol.records import Lock, Peer, Pending, Planned, Stable, decode

__all__ = ["PartitionView", "previous", "read_partition"]


class PartitionView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One partition's keys as read at one revision; a mod revision of 0 means absent."""

    stable: Stable | None = None
    stable_mod: int = 0
    pending: Pending | None = None
    pending_mod: int = 0
    planned: Planned | None = None
    planned_mod: int = 0
    trigger: int = 0
    trigger_mod: int = 0
    lock: Lock | None = None
    lock_mod: int = 0

    def mods(self) -> tuple[int, int, int, int, int]:
        """In the order of `PartitionKeys.all()`."""
        return (self.stable_mod, self.pending_mod, self.planned_mod, self.trigger_mod, self.lock_mod)

    def compares(self, keys: PartitionKeys) -> tuple[Compare, ...]:
        """The comparisons that hold as long as nothing of this view has changed."""
        return tuple([Compare(key, "mod", "=", mod) for key, mod in zip(keys.all(), self.mods(), strict=True)])

    def deletable_compares(self, keys: PartitionKeys) -> list[Compare]:
        """Those of the comparisons that a range over many partitions cannot make: what was there may be deleted.

        Stable and trigger go only with the whole table, and then the plan's head does too.
        """
        if not (self.pending_mod or self.planned_mod or self.lock_mod):
            return []
        changing = ((keys.pending, self.pending_mod), (keys.planned, self.planned_mod), (keys.lock, self.lock_mod))
        return [Compare(key, "mod", "=", mod) for key, mod in changing if mod]

    def peers(self) -> Iterator[Peer]:
        """Every peer that stable, pending or planned names."""
        if self.stable is not None:
            yield from self.stable.peers
        if self.pending is not None:
            yield from self.pending.peers()
        if self.planned is not None:
            yield from self.planned.peers


T = TypeVar("T")


_ABSENT = (None, 0)


def read_partition(keys: PartitionKeys, found: Mapping[str, KeyValue]) -> PartitionView:
    """Decode one partition's keys from what a read returned."""

    get = found.get

    def record(key: str, kind: type[T]) -> tuple[T | None, int]:
        if (kv := get(key)) is None:
            return _ABSENT
        return decode(kind, kv.value, key=key), kv.mod_revision

    stable, stable_mod = record(keys.stable, Stable)
    pending, pending_mod = record(keys.pending, Pending)
    planned, planned_mod = record(keys.planned, Planned)
    trigger, trigger_mod = record(keys.trigger, int)
    lock, lock_mod = record(keys.lock, Lock)
    if pending is not None and not all(pending.queue or ((),)):
        raise MalformedRecordError(f"metastore key {keys.pending!r} holds an empty queue or step; delete the key")
    return PartitionView(
        stable=stable,
        stable_mod=stable_mod,
        pending=pending,
        pending_mod=pending_mod,
        planned=planned,
        planned_mod=planned_mod,
        trigger=trigger or 0,
        trigger_mod=trigger_mod,
        lock=lock,
        lock_mod=lock_mod,
    )


def previous(view: PartitionView) -> tuple[Peer, ...]:
    """What a new plan starts from: the last thing that was asked for."""
    if view.planned is not None:
        return view.planned.peers
    if view.pending is not None:
        return view.pending.last
    return view.stable.peers if view.stable is not None else ()

"""One partition's keys as read at one revision: the input of the operator's and the leader's decisions."""

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
    """The values and mod revisions of one partition's keys; a mod revision of 0 means absent."""

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
        """Return the mod revisions in the order of `PartitionKeys.all()`."""
        return (self.stable_mod, self.pending_mod, self.planned_mod, self.trigger_mod, self.lock_mod)

    def compares(self, keys: PartitionKeys) -> tuple[Compare, ...]:
        """Return the comparisons that hold while no key of this view has changed."""
        return tuple([Compare(key, "mod", "=", mod) for key, mod in zip(keys.all(), self.mods(), strict=True)])

    def deletable_compares(self, keys: PartitionKeys) -> list[Compare]:
        """Return the comparisons that a range over many partitions cannot make: those of keys that may be deleted.

        Stable and trigger are deleted only with the whole table, and the plan's head with them.
        """
        if not (self.pending_mod or self.planned_mod or self.lock_mod):
            return []
        changing = ((keys.pending, self.pending_mod), (keys.planned, self.planned_mod), (keys.lock, self.lock_mod))
        return [Compare(key, "mod", "=", mod) for key, mod in changing if mod]

    def peers(self) -> Iterator[Peer]:
        """Return all peers of stable, pending and planned."""
        if self.stable is not None:
            yield from self.stable.peers
        if self.pending is not None:
            yield from self.pending.peers()
        if self.planned is not None:
            yield from self.planned.peers


T = TypeVar("T")

_ABSENT = (None, 0)


def read_partition(keys: PartitionKeys, found: Mapping[str, KeyValue]) -> PartitionView:
    """Decode one partition's keys from the key-values of a read."""
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
    """Return the peers that a new plan starts from: the newest target, or stable."""
    if view.planned is not None:
        return view.planned.peers
    if view.pending is not None:
        return view.pending.last
    return view.stable.peers if view.stable is not None else ()

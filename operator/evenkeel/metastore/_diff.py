"""What changed between two listings, for a watch that finds its history compacted."""

from __future__ import annotations

from collections.abc import Mapping

from evenkeel.metastore.metastore_api import Event, KeyValue, Snapshot

__all__ = ["difference"]


def difference(known: Mapping[str, int], snapshot: Snapshot) -> tuple[Event, ...]:
    """The changes that lead from `known` (mod revisions by key) to `snapshot`, in revision order.

    A key that was deleted and created anew shows both. When exactly a key was deleted is lost with the history; its
    event carries the latest revision at which it can have been.
    """
    listed = {kv.key for kv in snapshot.kvs}
    events = [Event(key, None, snapshot.revision) for key in known if key not in listed]
    for kv in snapshot.kvs:
        events += _changes_of(kv, known.get(kv.key, 0))
    return tuple(sorted(events, key=lambda event: (event.mod_revision, event.key)))


def _changes_of(kv: KeyValue, known_revision: int) -> list[Event]:
    if kv.mod_revision <= known_revision:
        return []
    put = Event(kv.key, kv, kv.mod_revision)
    if 0 < known_revision < kv.create_revision:
        # One transaction cannot delete and put a key, so the deletion came at least one revision earlier.
        return [Event(kv.key, None, kv.create_revision - 1), put]
    return [put]

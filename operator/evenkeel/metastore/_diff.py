"""Changes between two listings, for a watch whose history was compacted."""

from __future__ import annotations

from collections.abc import Mapping

from evenkeel.metastore.metastore_api import Event, KeyValue, Snapshot

__all__ = ["difference"]


def difference(known: Mapping[str, int], snapshot: Snapshot) -> tuple[Event, ...]:
    """Return the changes from `known` (mod revisions by key) to `snapshot`, in revision order.

    A key that was deleted and created again has both events. The exact revision of a deletion is lost with the history;
    its event has the latest possible one.
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
        # One transaction cannot delete and put the same key, so the deletion was at least one revision earlier.
        return [Event(kv.key, None, kv.create_revision - 1), put]
    return [put]

"""Metastore keys as last known from watches and reads.

A watch and a read can overtake each other. The mirror therefore stores the revision of its knowledge with each key,
deletions included, and ignores older information.
"""

from __future__ import annotations

from collections.abc import Iterator

from evenkeel.metastore.metastore_api import KeyValue, Snapshot

__all__ = ["KeyMirror"]


class KeyMirror:
    """Keys, each with the revision as of which it is known."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, KeyValue | None]] = {}

    def update(self, key: str, kv: KeyValue | None, *, at: int) -> bool:
        """Record that the key has this value, or is absent, as of revision `at`; return whether it has changed."""
        before = self._known.get(key)
        if before is not None and at <= before[0]:
            return False
        self._known[key] = (at, kv)
        return _mod(kv) != (0 if before is None else _mod(before[1]))

    def update_all(self, snapshot: Snapshot) -> None:
        """Apply a complete listing: a key that is not in it is absent."""
        listed = {kv.key for kv in snapshot.kvs}
        for key in self._known.keys() - listed:
            self.update(key, None, at=snapshot.revision)
        for kv in snapshot.kvs:
            self.update(kv.key, kv, at=snapshot.revision)

    def get(self, key: str) -> KeyValue | None:
        """Return the key as last known."""
        known = self._known.get(key)
        return None if known is None else known[1]

    def __iter__(self) -> Iterator[KeyValue]:
        """Iterate over the keys that exist."""
        return (kv for _, kv in self._known.values() if kv is not None)


def _mod(kv: KeyValue | None) -> int:
    return 0 if kv is None else kv.mod_revision

"""Keys as last known, whether a watch showed them or a read that was ahead of it.

A watch and reads overtake each other. Each key therefore carries the revision as of which it is known, deletions
included, and nothing older than that is learned any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from evenkeel.metastore.metastore_api import KeyValue, Snapshot

__all__ = ["Mirror"]


class Mirror:
    """Some keys, each as of a revision of its own."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, KeyValue | None]] = {}

    def learn(self, key: str, kv: KeyValue | None, *, at: int) -> bool:
        """The key is, or is absent, as of revision `at`; returns whether that is news."""
        before = self._known.get(key)
        if before is not None and at <= before[0]:
            return False
        self._known[key] = (at, kv)
        return _mod(kv) != (0 if before is None else _mod(before[1]))

    def learn_all(self, snapshot: Snapshot) -> None:
        """Everything there is, so that what is not in it is absent."""
        listed = {kv.key for kv in snapshot.kvs}
        for key in self._known.keys() - listed:
            self.learn(key, None, at=snapshot.revision)
        for kv in snapshot.kvs:
            self.learn(kv.key, kv, at=snapshot.revision)

    def get(self, key: str) -> KeyValue | None:
        """The key as last known."""
        known = self._known.get(key)
        return None if known is None else known[1]

    def __iter__(self) -> Iterator[KeyValue]:
        """All keys that are there."""
        return (kv for _, kv in self._known.values() if kv is not None)


def _mod(kv: KeyValue | None) -> int:
    return 0 if kv is None else kv.mod_revision

"""An in-memory copy of one StoreCluster's keys in the metastore, maintained by a watch.

Reconciliations read from it. Reading etcd would take fourteen requests per table, and most of the data, the stores, is
the same for every table. The copy may lag behind, which is safe: every write compares what it depends on, and a missed
change enqueues another reconciliation. The controller always sees its own writes: a read waits until the watch has
delivered them.

Reports of stores change constantly and no plan depends on them, so they are not in the copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from evenkeel.metastore.metastore_api import Event, KeyValue, Snapshot
from evenkeel.protocol.keys import Keys
from evenkeel.reconcile.known_stores import KnownStores, read_stores
from evenkeel.reconcile.reconcile_requests import Found
from evenkeel.runtime.clock import Clock

__all__ = ["Mirror"]

TIMEOUT_SECONDS: Final = 5.0
"""How long a read waits for the watch before the caller reads the metastore instead."""
QUIET_SECONDS: Final = 0.1
"""A watch that is quiet for so long has caught up: the missing revisions changed keys outside its prefix."""
_STORES: Final = ("stores", "stores.state")
_ELSEWHERE: Final = "load"
_Group = tuple[str, str]
"""A kind of key, and the table it belongs to, or an empty string."""


class Mirror:
    """The copy; it can be read while a watch maintains it."""

    def __init__(self, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._groups: dict[_Group, dict[str, KeyValue]] = {}
        self._revision: int | None = None
        self._quiet = 0
        """The newest revision for which the watch was awaited and stayed quiet."""
        self._stores: KnownStores | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def filled(self) -> bool:
        """Whether a watch maintains the copy."""
        return self._revision is not None

    def shows(self, revision: int) -> bool:
        """Whether the copy has all changes up to a revision."""
        return self._revision is not None and self._revision >= revision

    # The watch

    def fill(self, snapshot: Snapshot) -> None:
        """Replace the copy with a snapshot."""
        self._groups = {}
        self._stores = None
        for kv in snapshot.kvs:
            self._put(kv.key, kv)
        self.advance(snapshot.revision)

    def apply(self, event: Event) -> None:
        """Apply one change."""
        self._put(event.key, event.kv)

    def advance(self, revision: int) -> None:
        """Note that all changes up to this revision have been applied."""
        self._revision = revision
        for waiting in self._waiting:
            _end(waiting)

    def clear(self) -> None:
        """Note that the watch has ended."""
        self._revision = None

    def _put(self, key: str, kv: KeyValue | None) -> None:
        group = self._group(key)
        if group[0] == _ELSEWHERE:
            return
        if group[0] in _STORES:
            self._stores = None
        if kv is not None:
            self._groups.setdefault(group, {})[key] = kv
        elif (known := self._groups.get(group)) is not None:
            known.pop(key, None)
            if not known:
                del self._groups[group]

    def _group(self, key: str) -> _Group:
        kind, _, rest = key.removeprefix(self._keys.root).partition("/")
        name = rest.partition("/")[0]
        # `<table>` is `<name>.<uid>`, and no store has a dot in its name.
        return kind, name if "." in name else ""

    # Reading

    async def reached(self, revision: int) -> bool:
        """Wait until the copy has all changes up to a revision; return False after a timeout."""
        deadline = self._clock.now() + TIMEOUT_SECONDS
        while self._revision is not None and self._revision < revision and self._clock.now() < deadline:
            await self._next(deadline)
        return self.shows(revision)

    async def follow(self, revision: int) -> None:
        """Wait for the watch to reach a revision, as long as it makes progress.

        The watch shares an event loop with the reconciliations. If these took all the time, the watch would fall
        behind, and they would read outdated keys and write outdated statuses.
        """
        deadline = self._clock.now() + TIMEOUT_SECONDS
        while self._revision is not None and max(self._revision, self._quiet) < revision:
            if self._clock.now() >= deadline:
                return
            before = self._revision
            await self._next(min(deadline, self._clock.now() + QUIET_SECONDS))
            if self._revision == before:
                self._quiet = max(self._quiet, revision)

    async def _next(self, until: float) -> None:
        """Wait for the next change, or until a time."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        timer = self._clock.call_at(until, lambda: _end(waiting))
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiting)

    def read(self, prefixes: Iterable[str]) -> Found:
        """Return the keys under prefixes of one table's keys, or of all plans, and all stores."""
        assert self._revision is not None
        kvs: dict[str, KeyValue] = {}
        for prefix in prefixes:
            group = self._group(prefix)
            if prefix == self._keys.all_plans():
                kvs |= self._all_of(group[0])
            elif group[0] not in _STORES:
                kvs |= self._groups.get(group, {})
        return Found(self._revision, kvs, self.stores())

    def _all_of(self, kind: str) -> dict[str, KeyValue]:
        return {key: kv for group, kvs in self._groups.items() if group[0] == kind for key, kv in kvs.items()}

    def stores(self) -> KnownStores:
        """Return all stores."""
        if self._stores is None:
            kvs = (kv for kind in _STORES for kv in self._groups.get((kind, ""), {}).values())
            self._stores = read_stores(kvs, self._keys)
        return self._stores

    def all_of(self, kind: str) -> Iterable[KeyValue]:
        """Return every key of a kind, of all tables."""
        return [kv for (found, _), kvs in self._groups.items() if found == kind for kv in kvs.values()]

    def count(self, kind: str, table: str) -> int:
        """Return how many keys of a kind a table has."""
        return len(self._groups.get((kind, table), {}))

    def assignments(self) -> Iterable[KeyValue]:
        """Return every key that names a current or future replica."""
        kinds = self._keys.assignments().removeprefix(self._keys.root)
        return [kv for (kind, _), kvs in self._groups.items() if kind.startswith(kinds) for kv in kvs.values()]


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)

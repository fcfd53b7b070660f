"""What the metastore holds of one StoreCluster, kept in memory by the watch that tells of its changes.

Looks read from here. Asking etcd would take fourteen requests for each look at a table, and most of what came back, all
the stores, would be the same as for the table before. A look may be a moment behind, and is never wrong for that: every
write compares what it rests on, and what was missed means another look. But what was written by ourselves is always
there: a read waits until the watch has shown it.

What stores report of themselves changes all the time, is no ground for a plan, and is not kept here.
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

PATIENCE_SECONDS: Final = 5.0
"""For so long a read waits for what was written; then it is better to ask the metastore itself."""
SILENCE_SECONDS: Final = 0.1
"""A watch that tells nothing for so long has told everything: the rest is about keys of others."""
_STORES: Final = ("stores", "stores.state")
_ELSEWHERE: Final = "load"
_Group = tuple[str, str]
"""A kind of key and the table it speaks of, if it does."""


class Mirror:
    """Filled by whoever watches; empty until then, and whenever the watch has ended."""

    def __init__(self, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._groups: dict[_Group, dict[str, KeyValue]] = {}
        self._revision: int | None = None
        self._silent = 0
        """Up to this revision the watch was waited for, and had nothing more to tell."""
        self._stores: KnownStores | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def filled(self) -> bool:
        """Whether somebody watches."""
        return self._revision is not None

    def shows(self, revision: int) -> bool:
        """Whether all changes up to a revision are here."""
        return self._revision is not None and self._revision >= revision

    # Filling

    def fill(self, snapshot: Snapshot) -> None:
        """Take everything at one revision."""
        self._groups = {}
        self._stores = None
        for kv in snapshot.kvs:
            self._put(kv.key, kv)
        self.advance(snapshot.revision)

    def take(self, event: Event) -> None:
        """Take one change."""
        self._put(event.key, event.kv)

    def advance(self, revision: int) -> None:
        """All changes up to this revision have been taken."""
        self._revision = revision
        for waiting in self._waiting:
            _end(waiting)

    def forget(self) -> None:
        """Nobody watches any more."""
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
        """Whether all changes up to a revision are here, or are within a moment."""
        deadline = self._clock.now() + PATIENCE_SECONDS
        while self._revision is not None and self._revision < revision and self._clock.now() < deadline:
            await self._next(deadline)
        return self.shows(revision)

    async def follow(self, revision: int) -> None:
        """Let the watch come up to a revision, for as long as it gets on.

        It shares an event loop with looks, and would fall behind where these took all the time there is: they would
        begin with what is long over, and end with statuses that nobody corrects for as long.
        """
        deadline = self._clock.now() + PATIENCE_SECONDS
        while self._revision is not None and max(self._revision, self._silent) < revision:
            if self._clock.now() >= deadline:
                return
            before = self._revision
            await self._next(min(deadline, self._clock.now() + SILENCE_SECONDS))
            if self._revision == before:
                self._silent = max(self._silent, revision)

    async def _next(self, until: float) -> None:
        """Wait for the next change, but no longer."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        timer = self._clock.call_at(until, lambda: _end(waiting))
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiting)

    def read(self, prefixes: Iterable[str]) -> Found:
        """Everything under prefixes of tables' keys, or the plans of all tables, and all stores."""
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
        """All stores."""
        if self._stores is None:
            kvs = (kv for kind in _STORES for kv in self._groups.get((kind, ""), {}).values())
            self._stores = read_stores(kvs, self._keys)
        return self._stores

    def all_of(self, kind: str) -> Iterable[KeyValue]:
        """Every key of a kind, of whatever table."""
        return [kv for (found, _), kvs in self._groups.items() if found == kind for kv in kvs.values()]

    def count(self, kind: str, table: str) -> int:
        """How many keys of a kind a table has."""
        return len(self._groups.get((kind, table), {}))

    def assignments(self) -> Iterable[KeyValue]:
        """Every key that says who holds or will hold a partition."""
        kinds = self._keys.assignments().removeprefix(self._keys.root)
        return [kv for (kind, _), kvs in self._groups.items() if kind.startswith(kinds) for kv in kvs.values()]


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)

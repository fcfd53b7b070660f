"""What stores report of themselves, decoded as it comes, and found by the tables it speaks of.

A thousand stores report every few seconds: a look at a table wants the few that have to do with it, and a report is
worth a look at the tables it names only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evenkeel.metastore.api import KeyValue
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreLoad
from evenkeel.reconcile.partitions import read_loads

__all__ = ["Reports"]


class Reports:
    """The newest report of each store."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._loads: dict[str, StoreLoad] = {}
        self._stores: dict[str, set[str]] = {}
        """By table, the stores whose reports name it."""

    def fill(self, kvs: Iterable[KeyValue]) -> None:
        """Take all reports at one revision; other keys are passed over."""
        self._loads, self._stores = {}, {}
        for kv in kvs:
            if kv.key.startswith(self._keys.load("")):
                self.take(kv.key, kv)

    def take(self, key: str, kv: KeyValue | None) -> frozenset[str]:
        """Take one report that changed; the tables that it named or names."""
        store = key.removeprefix(self._keys.load(""))
        before = self._loads.pop(store, None)
        self._loads |= read_loads(() if kv is None else (kv,), self._keys)
        left, named = _tables(before), _tables(self._loads.get(store))
        for table in left - named:
            self._stores[table].discard(store)
            if not self._stores[table]:
                del self._stores[table]
        for table in named - left:
            self._stores.setdefault(table, set()).add(store)
        return left | named

    def all(self) -> Mapping[str, StoreLoad]:
        """All reports, by store."""
        return self._loads

    def of(self, table: str) -> Mapping[str, StoreLoad]:
        """The reports that name a table, by store."""
        return {store: self._loads[store] for store in sorted(self._stores.get(table, ()))}


def _tables(load: StoreLoad | None) -> frozenset[str]:
    if load is None:
        return frozenset()
    partitions = (name.rpartition("/")[0] for report in (load.filling, load.problems) for name in report)
    return frozenset((*load.tables, *partitions))

"""The newest reports of all stores, indexed by the tables they name.

A thousand stores report every few seconds, and a table's reconciliation needs only the reports that name it. A report
has a header, `load/<s>`, and one key for the sizes of each slice of a table's partitions. In the first release's format
the header has the sizes too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import LoadSlice, StoreLoad, decode
from evenkeel.reconcile.partition_sizes import Sizes

__all__ = ["ConcernedTables", "Reports"]

T = TypeVar("T", LoadSlice, StoreLoad)


class ConcernedTables(NamedTuple):
    """The tables that a new report concerns."""

    named: frozenset[str]
    """Tables that the new or the previous report names."""
    problems: frozenset[str] = frozenset()
    """Tables whose partitions have different problems."""
    damaged: frozenset[str] = frozenset()
    """Tables whose partitions have different damage."""


class Reports:
    """The newest report of each store; an unreadable report is ignored."""

    def __init__(self, keys: Keys, kvs: Iterable[KeyValue] = ()) -> None:
        self._keys = keys
        self.fill(kvs)

    def fill(self, kvs: Iterable[KeyValue]) -> None:
        """Replace all reports with those among `kvs`."""
        self._loads: dict[str, StoreLoad] = {}
        self._sizes = Sizes()
        self._stores: dict[str, set[str]] = {}
        """By table, the stores whose headers name it."""
        for kv in kvs:
            if kv.key.startswith(self._keys.load("")):
                self.apply(kv.key, kv)

    def apply(self, key: str, kv: KeyValue | None) -> ConcernedTables:
        """Apply one changed key; return the tables that it concerns."""
        store, table = self._keys.load_owner(key)
        return self._apply_slice(table, key, kv) if table else self._apply_header(store, key, kv)

    def _apply_slice(self, table: str, key: str, kv: KeyValue | None) -> ConcernedTables:
        found = _decoded(LoadSlice, kv)
        self._sizes.apply(key, {} if found is None else {table: found.sizes})
        return ConcernedTables(frozenset((table,)))

    def _apply_header(self, store: str, key: str, kv: KeyValue | None) -> ConcernedTables:
        before, found = self._loads.pop(store, None), _decoded(StoreLoad, kv)
        if found is not None:
            self._loads[store] = found
        self._sizes.apply(key, _header_sizes(found))
        left, named = _tables(before), _tables(found)
        for table in left - named:
            self._stores[table].discard(store)
            if not self._stores[table]:
                del self._stores[table]
        for table in named - left:
            self._stores.setdefault(table, set()).add(store)
        problems = _changed(_problems(before), _problems(found))
        return ConcernedTables(left | named, problems=problems, damaged=_changed(_damaged(before), _damaged(found)))

    def all(self) -> Mapping[str, StoreLoad]:
        """Return all headers, by store."""
        return self._loads

    def of(self, table: str) -> Mapping[str, StoreLoad]:
        """Return the headers that name a table, by store."""
        return {store: self._loads[store] for store in sorted(self._stores.get(table, ()))}

    def rates(self) -> Mapping[str, int]:
        """Return, by store, the bytes per second of the last copies to it."""
        measured = ((store, load.copied_per_second) for store, load in self._loads.items())
        return {store: rate for store, rate in measured if rate}

    def sizes(self, table: str) -> Mapping[int, int]:
        """Return the size of one replica of each of the table's partitions, as far as stores report it."""
        return self._sizes.of(table)


def _decoded(kind: type[T], kv: KeyValue | None) -> T | None:
    if kv is None:
        return None
    try:
        return decode(kind, kv.value, key=kv.key)
    except MalformedRecordError:
        return None


def _header_sizes(load: StoreLoad | None) -> dict[str, list[tuple[int, int]]]:
    tables = load.tables if load is not None else {}
    return {
        table: [(group.partition, group.bytes) for group in groups if group.bytes is not None]
        for table, groups in tables.items()
    }


def _problems(load: StoreLoad | None) -> Mapping[str, str]:
    return load.problems if load is not None else {}


def _damaged(load: StoreLoad | None) -> Mapping[str, str]:
    return dict.fromkeys(load.damaged, "") if load is not None else {}


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> frozenset[str]:
    """Return the tables of the partitions whose entries differ."""
    return frozenset(name.rpartition("/")[0] for name, _ in before.items() ^ after.items())


def _tables(load: StoreLoad | None) -> frozenset[str]:
    if load is None:
        return frozenset()
    partitions = (name.rpartition("/")[0] for name in (*load.filling, *load.problems, *load.damaged))
    return frozenset((*load.tables, *partitions))

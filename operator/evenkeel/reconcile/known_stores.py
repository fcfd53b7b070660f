"""All stores at one revision of the metastore, decoded once for all tables.

There may be a thousand stores, and every reconciliation of a table needs all of them, so derived values are cached.
Only the effect of a table's own `lostAfter` is computed per table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.model.views import StoresView, StoreView
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreRecord, StoreState, decode, encode

__all__ = ["KnownStores", "read_stores"]


class KnownStores:
    """Everything under `stores` and `stores.state`, decoded."""

    def __init__(self, kvs: Iterable[KeyValue]) -> None:
        self.kvs = {kv.key: kv for kv in kvs}
        self.registered: dict[str, StoreRecord] = {}
        """By name, the stores with a lease."""
        self.states: dict[str, StoreState] = {}
        """By name, the operator's decisions."""
        self.problems: dict[str, str] = {}
        """By name, why a key cannot be read."""

    def checked(self) -> KnownStores:
        """Return self; raise MalformedRecordError if a key cannot be read."""
        for problem in self.problems.values():
            raise MalformedRecordError(problem)
        return self

    @cached_property
    def names(self) -> frozenset[str]:
        """All stores that are registered or have a state."""
        return frozenset(self.registered.keys() | self.states.keys())

    @cached_property
    def lost(self) -> frozenset[str]:
        """Stores without a lease, except those whose keys cannot be read."""
        return frozenset(self.states.keys() - self.registered.keys() - self.problems.keys())

    @cached_property
    def announced(self) -> dict[str, StoreRecord]:
        """By name, the records of registered stores, and the last records of lost ones."""
        kept = {name: state.record for name, state in self.states.items() if state.record is not None}
        return {**kept, **self.registered}

    @cached_property
    def capped(self) -> bool:
        """Whether any store has a cap; all tables share it."""
        return any(view.capacity is not None for view in self._views.values())

    # Views for a table's rebalancer

    def view(self, name: str, record: StoreRecord, table: str) -> StoreView:
        """Return one store as a table's rebalancer sees it, with the StoreCluster's overrides."""
        state = self.states.get(name)
        decided = state if state is not None and state.volume == record.volume else None
        record = decided.record if decided is not None and decided.record is not None else record
        return StoreView(
            name=name,
            volume=record.volume,
            zone=record.zone,
            weight=record.weight,
            capacity=record.capacity,
            labels=record.labels,
            live=decided is None or not decided.given_up(table),
            draining=decided is not None and decided.draining,
        )

    def stores(self, table: str, named: Mapping[str, StoreRecord]) -> StoresView:
        """Return all stores; `named` are those that the table's partitions name, of which only the volume is known."""
        views = self._views_for(table)
        others = {name: record for name, record in named.items() if name not in views}
        if views is self._views and not others:
            return self._all
        return StoresView.of(*(self.view(name, record, table) for name, record in others.items()), *views.values())

    def basis(self, table: str) -> bytes:
        """Return what a plan of the table depends on in the stores; losing a store alone changes nothing."""
        views = self._views_for(table)
        seen = self._encoded if views is self._views else _encoded(views)
        unannounced = ((name, state) for name, state in sorted(self.states.items()) if name not in self.announced)
        return seen + b"".join(
            encode((name, state.volume, state.given_up(table), state.draining)) for name, state in unannounced
        )

    def _views_for(self, table: str) -> dict[str, StoreView]:
        if not any(table in self.states[name].replace_in for name in self._given_up_by_some):
            return self._views
        given_up = {name: self.view(name, self.announced[name], table) for name in self._given_up_by_some}
        return {**self._views, **given_up}

    @cached_property
    def _given_up_by_some(self) -> tuple[str, ...]:
        return tuple(name for name in self.announced if name in self.states and self.states[name].replace_in)

    @cached_property
    def _views(self) -> dict[str, StoreView]:
        """The views of a table that replaces no store."""
        return {name: self.view(name, record, "") for name, record in self.announced.items()}

    @cached_property
    def _all(self) -> StoresView:
        return StoresView.of(*self._views.values())

    @cached_property
    def _encoded(self) -> bytes:
        return _encoded(self._views)


def _encoded(views: Mapping[str, StoreView]) -> bytes:
    return b"".join(encode(view) for _, view in sorted(views.items()))


def read_stores(kvs: Iterable[KeyValue], keys: Keys) -> KnownStores:
    """Decode everything under `stores` and `stores.state`; unreadable keys are collected in `problems`."""
    found = KnownStores(kvs)
    for kv in found.kvs.values():
        kind, _, name = kv.key.removeprefix(keys.root).partition("/")
        try:
            if kind == "stores":
                found.registered[name] = decode(StoreRecord, kv.value, key=kv.key)
            elif kind == "stores.state":
                found.states[name] = decode(StoreState, kv.value, key=kv.key)
        except MalformedRecordError as error:
            found.problems[name] = str(error)
    return found

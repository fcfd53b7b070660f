"""Addresses of the other stores.

A store whose registration has ended may still be alive: it lost etcd, not its peers. Its last address stays known
while the operator keeps its record, or while a partition on this store names it.
"""

from __future__ import annotations

from collections.abc import Container

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Event, KeyValue, Snapshot
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreRecord, StoreState, decode
from evenkeel_raft.shared.identity import Address

__all__ = ["PeerRegistry"]


class PeerRegistry:
    """All stores of the StoreCluster as last seen."""

    def __init__(self, keys: Keys, me: str) -> None:
        self._keys = keys
        self._me = me
        self._kvs: dict[str, KeyValue] = {}
        self._addresses: dict[str, Address] = {}
        self.problems: dict[str, str] = {}
        """Why stores cannot be reached, for stores with an invalid record."""

    def load(self, snapshot: Snapshot) -> None:
        """Replace all registrations and states by a listing."""
        self._kvs = {kv.key: kv for kv in snapshot.kvs}

    def apply(self, event: Event) -> None:
        """Apply one event."""
        if event.kv is None:
            self._kvs.pop(event.key, None)
        else:
            self._kvs[event.key] = event.kv

    def count(self) -> int:
        """Return how many stores are registered."""
        return sum(not self._is_state(key) for key in self._kvs)

    def registration(self, store: str) -> KeyValue | None:
        """Return the store's registration, which exists while its lease does."""
        return self._kvs.get(self._keys.store(store))

    def addresses(self, *, named: Container[str]) -> dict[str, Address]:
        """Return the addresses of all other stores; `named` are the stores that this store's partitions name."""
        self.problems = {}
        found: dict[str, Address] = {}
        for key in sorted(self._kvs, key=self._is_state):
            self._find(self._kvs[key], found)
        found.pop(self._me, None)
        kept = {store: at for store, at in self._addresses.items() if store not in found and store in named}
        self._addresses = {**kept, **found}
        return dict(self._addresses)

    def _is_state(self, key: str) -> bool:
        """Whether the key is the operator's copy of a record; a store's own registration takes precedence over it."""
        return key.startswith(self._keys.store_states())

    def _find(self, kv: KeyValue, found: dict[str, Address]) -> None:
        store = kv.key.rpartition("/")[2]
        try:
            if self._is_state(kv.key):
                record = decode(StoreState, kv.value, key=kv.key).record
            else:
                record = decode(StoreRecord, kv.value, key=kv.key)
            if record is not None:
                found.setdefault(store, _parse(record))
        except (MalformedRecordError, ValueError) as error:
            self.problems[store] = str(error)


def _parse(record: StoreRecord) -> Address:
    host, colon, port = record.address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) not in range(1, 65536):
        raise ValueError(f"address {record.address!r} is not host:port")
    return Address(host.removeprefix("[").removesuffix("]"), int(port), record.volume)

"""One table and its stores, as the metastore had them at one revision."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.api import KeyValue
from evenkeel.model.views import Assignment, CurrentState, StoresView, StoreView
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.partition import PartitionView, previous, read_partition
from evenkeel.protocol.plan import Plan, read_plan
from evenkeel.protocol.records import (
    Leader,
    Peer,
    PlanHead,
    Role,
    StoreRecord,
    StoreState,
    TableRecord,
    decode,
    encode,
)
from evenkeel.reconcile.requests import Found, Read

__all__ = ["TableSnapshot", "read_table"]

T = TypeVar("T")
_REMEMBERED = 65_536


def read_table(keys: Keys, table: str) -> Read:
    """The request for all that a `TableSnapshot` is made of."""
    own = (keys.table(table), keys.tombstone(table), keys.rebalancer_context(table), *keys.of_table(table))
    return Read((*own, keys.stores(), keys.store_states()))


class TableSnapshot:
    """What `read_table` found, decoded where it is asked for."""

    def __init__(self, keys: Keys, table: str, found: Found) -> None:
        self.keys = keys
        self.table = table
        self.revision = found.revision
        self.kvs: Mapping[str, KeyValue] = found.kvs
        self.record_kv = found.kvs.get(keys.table(table))
        self.head_kv = found.kvs.get(keys.plan_head(table))
        self.tombstone_kv = found.kvs.get(keys.tombstone(table))
        self.plan_problem = ""
        """Why the newest plan cannot be read, once `plan` was asked for."""
        self._views: dict[int, PartitionView] = {}

    @cached_property
    def record(self) -> TableRecord | None:
        """The table's record."""
        return None if self.record_kv is None else decode(TableRecord, self.record_kv.value, key=self.record_kv.key)

    @cached_property
    def plan(self) -> Plan | None:
        """The newest plan; None where there is none or, see `plan_problem`, where it cannot be read."""
        if self.head_kv is None:
            return None
        try:
            n = decode(PlanHead, self.head_kv.value, key=self.head_kv.key).n
            return read_plan(self.head_kv, self._under(self.keys.plan_slices(self.table, n)).values())
        except MalformedRecordError as error:
            self.plan_problem = str(error)
            return None

    @property
    def next_plan(self) -> int:
        """The number of the plan to come: above every plan there was, also where the newest cannot be read."""
        if self.plan is not None:
            return self.plan.n + 1
        written = self._under(self.keys.plans(self.table))
        numbers = [int(key.split("/")[-2]) for key in written if key.split("/")[-2].isdigit()]
        return 1 + max([0, *numbers, *(self.partition(p).trigger for p in range(self._partitions))])

    @property
    def _partitions(self) -> int:
        return 0 if self.record is None else self.record.partitions

    def partition(self, partition: int) -> PartitionView:
        """One partition's keys."""
        if partition not in self._views:
            self._views[partition] = read_partition(self.keys.partition(self.table, partition), self.kvs)
        return self._views[partition]

    @cached_property
    def stores(self) -> StoresView:
        """All stores as a rebalancer sees them.

        A store whose lease has ended is still there, with what is known of it, until someone decides otherwise: that it
        does not answer for a while is no reason to copy its data.
        """
        named = {name: record for name, record in self._named().items() if name not in self._announced}
        return StoresView.of(
            *(self._store(name, record) for name, record in named.items()), *self._announced_views.values()
        )

    @cached_property
    def _announced_views(self) -> dict[str, StoreView]:
        return {name: self._store(name, record) for name, record in self._announced.items()}

    @cached_property
    def _states(self) -> dict[str, StoreState]:
        """What was decided about stores."""
        return self._records(self.keys.store_states(), StoreState)

    @cached_property
    def _announced(self) -> dict[str, StoreRecord]:
        """The stores as they announced themselves, also those whose leases have ended."""
        kept = {name: state.record for name, state in self._states.items() if state.record is not None}
        return {**kept, **self.registered}

    def _store(self, name: str, record: StoreRecord) -> StoreView:
        """A store as the table's rebalancer sees it: the operator's copy of its record has overrides in it."""
        state = self._states.get(name)
        decided = state if state is not None and state.volume == record.volume else None
        record = decided.record if decided is not None and decided.record is not None else record
        return StoreView(
            name=name,
            volume=record.volume,
            zone=record.zone,
            weight=record.weight,
            capacity=record.capacity,
            labels=record.labels,
            live=decided is None or not decided.given_up(self.table),
            draining=decided is not None and decided.draining,
        )

    @cached_property
    def registered(self) -> dict[str, StoreRecord]:
        """The stores whose leases live."""
        return self._records(self.keys.stores(), StoreRecord)

    def _named(self) -> dict[str, StoreRecord]:
        """The stores that hold or will hold a replica, by nothing but their volume."""
        newest: dict[str, Peer] = {}
        for partition in range(self._partitions):
            for peer in self.partition(partition).peers():
                if peer.store not in newest or newest[peer.store].replica < peer.replica:
                    newest[peer.store] = peer
        return {name: StoreRecord(volume=peer.volume) for name, peer in newest.items()}

    @cached_property
    def volumes(self) -> dict[str, str]:
        """The volume of every store that is not to be replaced; a draining one is still there."""
        return {store.name: store.volume for store in self.stores.stores if store.live}

    @property
    def context(self) -> bytes | None:
        """What the table's rebalancer remembered."""
        kv = self.kvs.get(self.keys.rebalancer_context(self.table))
        return None if kv is None else kv.value

    def basis(self, wish: bytes) -> str:
        """A hash of what a plan for this wish rests on, beside where replicas happen to be on their way.

        Of the stores it is what a rebalancer sees: one that is silent for a while is still the same.
        """
        digest = hashlib.blake2b(wish, digest_size=16)
        for _, view in sorted(self._announced_views.items()):
            digest.update(encode(view))
        for name, state in sorted(self._states.items()):
            if name not in self._announced:
                digest.update(encode((name, state.volume, state.given_up(self.table), state.draining)))
        return digest.hexdigest()

    def gone(self, peer: Peer) -> bool:
        """Whether a replica cannot come back: its store is given up, or runs on another volume."""
        return self.volumes.get(peer.store) != peer.volume

    def previous(self, partitions: int) -> Assignment:
        """What was last asked for: planned, else the end of pending, else stable; preferred leaders first."""
        peers = [previous(self.partition(partition)) for partition in range(partitions)]
        votes = max((sum(peer.role is Role.VOTER for peer in row) for row in peers), default=0)
        newest = self.plan
        preferred = [None] * partitions if newest is None else [newest.target(p)[0].store for p in range(partitions)]
        return Assignment.of([_row(row, preferred[p]) for p, row in enumerate(peers)], voters=votes)

    def current(self, partitions: int) -> CurrentState:
        """Who leads now, and which partitions are on the move."""
        leaders = self._records(self.keys.leaders(self.table), Leader)
        return CurrentState(
            leaders={p: leaders[f"{p:06}"].store for p in range(partitions) if f"{p:06}" in leaders},
            moving=frozenset(p for p in range(partitions) if self.partition(p).pending is not None),
        )

    def _records(self, prefix: str, kind: type[T]) -> dict[str, T]:
        record: Any = kind
        found = self._under(prefix).items()
        return {key.removeprefix(prefix): _decoded(record, kv.value, key) for key, kv in found}

    def _under(self, prefix: str) -> Mapping[str, KeyValue]:
        return {key: kv for key, kv in self.kvs.items() if key.startswith(prefix)}


@lru_cache(maxsize=_REMEMBERED)
def _decoded(kind: type[Any], value: bytes, key: str) -> Any:
    """Records are the same from look to look, and are never changed."""
    return decode(kind, value, key=key)


def _row(peers: Iterable[Peer], leader: str | None) -> list[str]:
    """Voters before learners, the preferred leader first."""
    ordered = sorted(peers, key=lambda peer: (peer.role is not Role.VOTER, peer.store != leader, peer.store))
    return [peer.store for peer in ordered]

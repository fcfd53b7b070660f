"""One table and its stores, as the metastore had them at one revision."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.model.views import Assignment, CurrentState, StoresView
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.partition_view import PartitionView, previous, read_partition
from evenkeel.protocol.records import (
    Leader,
    Peer,
    PlanHead,
    Role,
    StoreRecord,
    TableRecord,
    decode,
)
from evenkeel.protocol.stored_plan import Plan, read_plan
from evenkeel.reconcile.known_stores import KnownStores, read_stores
from evenkeel.reconcile.reconcile_requests import Found, Read

__all__ = ["TableSnapshot", "read_table"]


def read_table(keys: Keys, table: str) -> Read:
    """The request for all that a `TableSnapshot` is made of."""
    own = (keys.table(table), keys.tombstone(table), keys.rebalancer_context(table), *keys.of_table(table))
    return Read((*own, keys.stores(), keys.store_states(), keys.drains()))


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
        self._known = found.stores if found.stores is not None else read_stores(found.kvs.values(), keys)

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
    def handing_over(self) -> set[str]:
        """Stores that are to lead nothing for now."""
        return {key.removeprefix(self.keys.drains()) for key in self._under(self.keys.drains())}

    @property
    def next_plan(self) -> int:
        """The number of the plan to come: above every plan there was, also where the newest cannot be read."""
        if self.plan is not None:
            return self.plan.n + 1
        written = self._under(self.keys.plans(self.table))
        numbers = [int(key.split("/")[-2]) for key in written if key.split("/")[-2].isdigit()]
        views = [self.partition(p) for p in range(self._partitions)]
        ids = [peer.replica for view in views for peer in view.peers()]
        floor = 0 if self.record is None else self.record.plan_floor
        return 1 + max([floor, *numbers, *ids, *(view.trigger for view in views)])

    @property
    def _partitions(self) -> int:
        return 0 if self.record is None else self.record.partitions

    def partition(self, partition: int) -> PartitionView:
        """One partition's keys."""
        if partition not in self._views:
            self._views[partition] = read_partition(self.keys.partition(self.table, partition), self.kvs)
        return self._views[partition]

    @property
    def known(self) -> KnownStores:
        """All stores; MalformedRecordError where one of their keys cannot be read."""
        return self._known.checked()

    @cached_property
    def stores(self) -> StoresView:
        """All stores as a rebalancer sees them.

        A store whose lease has ended is still there, with what is known of it, until someone decides otherwise: that it
        does not answer for a while is no reason to copy its data.
        """
        return self.known.stores(self.table, self._named())

    @property
    def registered(self) -> Mapping[str, StoreRecord]:
        """The stores whose leases live."""
        return self.known.registered

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

    def basis(self, desired: bytes) -> str:
        """A hash of what a plan for this wish rests on, beside where replicas happen to be on their way.

        Of the stores it is what a rebalancer sees: one that is silent for a while is still the same.
        """
        return hashlib.blake2b(desired + self.known.basis(self.table), digest_size=16).hexdigest()

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
        return CurrentState(
            leaders={p: leader.store for p, leader in sorted(self.leaders.items()) if p < partitions},
            moving=frozenset(p for p in range(partitions) if self.partition(p).pending is not None),
        )

    @cached_property
    def leaders(self) -> dict[int, Leader]:
        """By partition, who leads by the metastore's word; the key of a store that died stays."""
        prefix = self.keys.leaders(self.table)
        found = ((key.removeprefix(prefix), kv) for key, kv in self._under(prefix).items())
        return {int(number): decode(Leader, kv.value, key=kv.key) for number, kv in found if number.isdecimal()}

    def _under(self, prefix: str) -> Mapping[str, KeyValue]:
        return {key: kv for key, kv in self.kvs.items() if key.startswith(prefix)}


def _row(peers: Iterable[Peer], leader: str | None) -> list[str]:
    """Voters before learners, the preferred leader first."""
    ordered = sorted(peers, key=lambda peer: (peer.role is not Role.VOTER, peer.store != leader, peer.store))
    return [peer.store for peer in ordered]

"""One table's keys and all stores at one revision of the metastore."""

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
    """Return the request for everything in a `TableSnapshot`."""
    own = (keys.table(table), keys.tombstone(table), keys.rebalancer_context(table), *keys.of_table(table))
    return Read((*own, keys.stores(), keys.store_states(), keys.inhibitions()))


class TableSnapshot:
    """The keys that `read_table` reads, decoded on demand."""

    def __init__(self, keys: Keys, table: str, found: Found) -> None:
        self.keys = keys
        self.table = table
        self.revision = found.revision
        self.kvs: Mapping[str, KeyValue] = found.kvs
        self.record_kv = found.kvs.get(keys.table(table))
        self.head_kv = found.kvs.get(keys.plan_head(table))
        self.tombstone_kv = found.kvs.get(keys.tombstone(table))
        self.plan_problem = ""
        """Why the newest plan cannot be read; set when `plan` is read."""
        self._views: dict[int, PartitionView] = {}
        self._known = found.stores if found.stores is not None else read_stores(found.kvs.values(), keys)

    @cached_property
    def record(self) -> TableRecord | None:
        """The table's record; None if there is none."""
        return None if self.record_kv is None else decode(TableRecord, self.record_kv.value, key=self.record_kv.key)

    @cached_property
    def plan(self) -> Plan | None:
        """The newest plan; None if there is none or it cannot be read (see `plan_problem`)."""
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
        """Stores whose leadership is inhibited."""
        return {key.removeprefix(self.keys.inhibitions()) for key in self._under(self.keys.inhibitions())}

    @property
    def next_plan(self) -> int:
        """The next plan's number: above every earlier plan's, even if the newest cannot be read."""
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
        """Return one partition's decoded keys."""
        if partition not in self._views:
            self._views[partition] = read_partition(self.keys.partition(self.table, partition), self.kvs)
        return self._views[partition]

    @property
    def known(self) -> KnownStores:
        """All stores; raises MalformedRecordError if one of their keys cannot be read."""
        return self._known.checked()

    @cached_property
    def stores(self) -> StoresView:
        """All stores as a rebalancer sees them.

        A lost store is included with its last record until its replicas are replaced (see `lost_stores`).
        """
        return self.known.stores(self.table, self._named())

    @property
    def registered(self) -> Mapping[str, StoreRecord]:
        """By name, the stores with a lease."""
        return self.known.registered

    def _named(self) -> dict[str, StoreRecord]:
        """Return the stores that hold or will hold a replica, with only their volume."""
        newest: dict[str, Peer] = {}
        for partition in range(self._partitions):
            for peer in self.partition(partition).peers():
                if peer.store not in newest or newest[peer.store].replica < peer.replica:
                    newest[peer.store] = peer
        return {name: StoreRecord(volume=peer.volume) for name, peer in newest.items()}

    @cached_property
    def volumes(self) -> dict[str, str]:
        """By name, the volume of every store that is not replaced, including draining ones."""
        return {store.name: store.volume for store in self.stores.stores if store.live}

    @property
    def context(self) -> bytes | None:
        """The state that the table's rebalancer stored."""
        kv = self.kvs.get(self.keys.rebalancer_context(self.table))
        return None if kv is None else kv.value

    def basis(self, desired: bytes) -> str:
        """Return a hash of what a plan depends on: the desired state, and the stores as a rebalancer sees them.

        The current location of replicas is not part of it.
        """
        return hashlib.blake2b(desired + self.known.basis(self.table), digest_size=16).hexdigest()

    def gone(self, peer: Peer) -> bool:
        """Whether a replica cannot come back: its store is replaced, or runs on another volume."""
        return self.volumes.get(peer.store) != peer.volume

    def previous(self, partitions: int) -> Assignment:
        """Return the last requested assignment: planned, else pending's end, else stable; preferred leaders first."""
        peers = [previous(self.partition(partition)) for partition in range(partitions)]
        votes = max((sum(peer.role is Role.VOTER for peer in row) for row in peers), default=0)
        newest = self.plan
        preferred = [None] * partitions if newest is None else [newest.target(p)[0].store for p in range(partitions)]
        return Assignment.of([_row(row, preferred[p]) for p, row in enumerate(peers)], voters=votes)

    def current(self, partitions: int) -> CurrentState:
        """Return the current leaders and the moving partitions."""
        return CurrentState(
            leaders={p: leader.store for p, leader in sorted(self.leaders.items()) if p < partitions},
            moving=frozenset(p for p in range(partitions) if self.partition(p).pending is not None),
        )

    @cached_property
    def leaders(self) -> dict[int, Leader]:
        """By partition, the leader in the metastore; the key of a failed leader stays until another one leads."""
        prefix = self.keys.leaders(self.table)
        found = ((key.removeprefix(prefix), kv) for key, kv in self._under(prefix).items())
        return {int(number): decode(Leader, kv.value, key=kv.key) for number, kv in found if number.isdecimal()}

    def _under(self, prefix: str) -> Mapping[str, KeyValue]:
        return {key: kv for key, kv in self.kvs.items() if key.startswith(prefix)}


def _row(peers: Iterable[Peer], leader: str | None) -> list[str]:
    """Return the stores: voters before learners, the preferred leader first."""
    ordered = sorted(peers, key=lambda peer: (peer.role is not Role.VOTER, peer.store != leader, peer.store))
    return [peer.store for peer in ordered]

"""The watches of one session and the handlers of their events.

    partition.assignments.   stable, pending, planned and lock of all partitions, at one revision
    tables                   records and tombstones, at one revision
    stores                   registrations and addresses, and the operator's record of each store
    leader.target/           orders to hand over single partitions
    drains/<this store>      the order to lead nothing
    settings                 throttles and thresholds of all stores
    version                  the cluster version
    adoption                 the user's request to follow this metastore; it ends the session

One watch may be ahead of another. That is safe: a decision that uses keys of two watches is a transaction that
compares them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from evenkeel.errors import ClusterMismatchError, MalformedRecordError, MetastoreError
from evenkeel.metastore.metastore_api import KeyValue, Snapshot, WatchBatch
from evenkeel.protocol.records import InhibitionOrder, StoreSettings, decode
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.agent.leadership_inhibition import LeadershipInhibition
from evenkeel_raft.agent.metastore_guard import MetastoreGuard
from evenkeel_raft.agent.ordered_transfers import OrderedTransfers
from evenkeel_raft.agent.peer_registry import PeerRegistry
from evenkeel_raft.agent.store_registration import StoreRegistration
from evenkeel_raft.agent.table_drops import TableDrops
from evenkeel_raft.agent.table_states import TableStates
from evenkeel_raft.agent.tracked_partitions import TrackedPartitions

__all__ = ["ORDERED", "MetastoreWatch"]

log = logging.getLogger(__name__)

ORDERED = "the operator ordered this store to lead nothing"


class MetastoreWatch:
    """All watches of one session."""

    def __init__(
        self,
        context: AgentContext,
        *,
        guard: MetastoreGuard,
        partitions: TrackedPartitions,
        tables: TableStates,
        stores: PeerRegistry,
        orders: OrderedTransfers,
        drops: TableDrops,
        inhibition: LeadershipInhibition,
        registration: StoreRegistration,
    ) -> None:
        self._context = context
        self._guard = guard
        self._partitions = partitions
        self._tables = tables
        self._stores = stores
        self._orders = orders
        self._drops = drops
        self._inhibition = inhibition
        self._registration = registration
        self._inhibition_key = context.keys.inhibition(context.me.store)
        keys = context.keys
        self._watches: dict[str, Callable[[WatchBatch], None]] = {
            keys.assignments(): self._on_partitions,
            keys.tables(): self._on_tables,
            keys.all_stores(): self._on_stores,
            keys.leader_targets(): self._on_orders,
            self._inhibition_key: self._on_inhibition,
            keys.settings: self._on_settings,
            keys.version: self._on_version,
            keys.adoption: self._on_adoption,
        }

    @property
    def prefixes(self) -> Iterable[str]:
        """The prefixes to list and watch."""
        return self._watches

    def load(self, snapshots: dict[str, Snapshot]) -> None:
        """Replace everything known by a listing."""
        keys, running = self._context.keys, self._context.groups.running()
        self._context.version.observe({kv.key: kv for kv in snapshots[keys.version].kvs}.get(keys.version))
        self._tables.load(snapshots[keys.tables()])
        self._partitions.load(snapshots[keys.assignments()], running=running)
        self._stores.load(snapshots[keys.all_stores()])
        self._orders.load(snapshots[keys.leader_targets()])
        self._set_inhibition({kv.key: kv for kv in snapshots[self._inhibition_key].kvs}.get(self._inhibition_key))
        self._set_settings({kv.key: kv for kv in snapshots[keys.settings].kvs}.get(keys.settings))
        self._check_tables()
        self._context.groups.limit_copies(self._tables.limits())
        self._registration.observe(
            self._stores.registration(self._context.me.store), at=snapshots[keys.all_stores()].revision
        )
        self.set_peers()

    async def watch(self, prefix: str, after: Snapshot) -> None:
        """Follow one of the prefixes, until cancelled."""
        handle = self._watches[prefix]
        async for batch in self._context.metastore.watch(prefix, after=after):
            self._guard.observe_revision(batch.revision)
            handle(batch)
        raise MetastoreError(f"the watch of {prefix} ended; starting a new session")

    def _on_partitions(self, batch: WatchBatch) -> None:
        self._context.queue.add_all(self._partitions.apply(batch))

    def _on_tables(self, batch: WatchBatch) -> None:
        changed = {self._tables.apply(event) for event in batch.events}
        for table in changed:
            if self._tables.tombstone(table) is not None:
                self._drops.check(table)
        mine = [*(tracked.partition for tracked in self._partitions), *self._context.groups.running()]
        self._context.queue.add_all(partition for partition in mine if partition.table in changed)
        self._context.groups.limit_copies(self._tables.limits())
        self._check_tables()

    def _on_stores(self, batch: WatchBatch) -> None:
        for event in batch.events:
            self._stores.apply(event)
        if batch.events:
            self.set_peers()
        self._registration.observe(self._stores.registration(self._context.me.store), at=batch.revision)

    def _on_orders(self, batch: WatchBatch) -> None:
        self._context.queue.add_all(self._orders.apply(event) for event in batch.events)

    def _on_inhibition(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.key == self._inhibition_key:
                self._set_inhibition(event.kv)

    def _on_version(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.key == self._context.keys.version:
                self._context.version.observe(event.kv)
                self._registration.announce()

    def _on_adoption(self, batch: WatchBatch) -> None:
        """End the session if this metastore was adopted in the meantime, because all known state is obsolete.

        A metastore that was emptied in place looks like the previous one as soon as its first table exists.
        """
        for event in batch.events:
            if event.key == self._context.keys.adoption and self._guard.is_new_request(event.kv):
                raise MetastoreError("the user adopted this metastore; starting a new session without memory")

    def _set_inhibition(self, kv: KeyValue | None) -> None:
        """Apply the order to lead nothing; an order for another pod of the same name is ignored."""
        try:
            order = None if kv is None else decode(InhibitionOrder, kv.value, key=kv.key)
        except MalformedRecordError as error:
            log.warning("handing over leaderships, because the inhibition order is malformed: %s", error)
            order = InhibitionOrder()
        if order is not None and order.pod in ("", self._context.me.pod):
            self._inhibition.add(ORDERED)
        else:
            self._inhibition.remove(ORDERED)

    def _on_settings(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.key == self._context.keys.settings:
                self._set_settings(event.kv)

    def _set_settings(self, kv: KeyValue | None) -> None:
        """Apply the settings of all stores; a malformed record changes nothing."""
        try:
            settings = None if kv is None else decode(StoreSettings, kv.value, key=kv.key)
        except MalformedRecordError as error:
            log.warning("keeping the current settings: %s", error)
            return
        self._context.tuning.apply(settings)
        self._context.groups.throttle(settings)

    def set_peers(self) -> None:
        """Give raft the addresses of the other stores."""
        views = (tracked.agent.view for tracked in self._partitions)
        named = {peer.store for view in views if view is not None for peer in view.peers()}
        self._context.groups.set_peers(self._stores.addresses(named=named))

    def _check_tables(self) -> None:
        why = self._guard.missing_tables(tables_empty=self._tables.empty)
        if why:
            raise ClusterMismatchError(why)

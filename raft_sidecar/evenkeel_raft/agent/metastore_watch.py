"""What the agent watches, and who gets to know of it.

    partition.assignments.   stable, pending, planned and lock of all partitions, at one revision
    tables                   records and tombstones, at one revision
    stores                   who is registered and where, and the operator's record of who was
    leader.target/           orders to hand single partitions over
    drains/<this store>      the order to lead nothing
    settings                 throttles and thresholds of all stores
    version                  the cluster version
    adoption                 the user's request to follow this metastore, after which nothing known of it counts

Each watch may be ahead of the others. That is safe: nothing is decided by two of them that a transaction does not
compare.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from evenkeel.errors import ClusterMismatchError, MalformedRecordError, MetastoreError
from evenkeel.metastore.metastore_api import KeyValue, Snapshot, WatchBatch
from evenkeel.protocol.records import Drain, StoreSettings, decode
from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.agent.leadership_inhibition import Reluctance
from evenkeel_raft.agent.metastore_guard import Guard
from evenkeel_raft.agent.ordered_transfers import Orders
from evenkeel_raft.agent.peer_registry import Stores
from evenkeel_raft.agent.store_registration import Registration
from evenkeel_raft.agent.table_drops import Drops
from evenkeel_raft.agent.table_states import Tables
from evenkeel_raft.agent.tracked_partitions import Seats

__all__ = ["ORDERED", "Following"]

log = logging.getLogger(__name__)

ORDERED = "an order drains this store"


class Following:
    """All watches of one session, and what is known by them."""

    def __init__(
        self,
        context: Context,
        *,
        guard: Guard,
        seats: Seats,
        tables: Tables,
        stores: Stores,
        orders: Orders,
        drops: Drops,
        reluctance: Reluctance,
        registration: Registration,
    ) -> None:
        self._context = context
        self._guard = guard
        self._seats = seats
        self._tables = tables
        self._stores = stores
        self._orders = orders
        self._drops = drops
        self._reluctance = reluctance
        self._registration = registration
        self._drain = context.keys.drain(context.me.store)
        keys = context.keys
        self._watches: dict[str, Callable[[WatchBatch], None]] = {
            keys.assignments(): self._see_partitions,
            keys.tables(): self._see_tables,
            keys.all_stores(): self._see_stores,
            keys.leader_targets(): self._see_orders,
            self._drain: self._see_drain,
            keys.settings: self._see_settings,
            keys.version: self._see_version,
            keys.adoption: self._see_adoption,
        }

    @property
    def prefixes(self) -> Iterable[str]:
        """What is to be listed and watched."""
        return self._watches

    def begin(self, snapshots: dict[str, Snapshot]) -> None:
        """Everything as it is now, whatever was known before."""
        keys, running = self._context.keys, self._context.groups.running()
        self._context.version.see({kv.key: kv for kv in snapshots[keys.version].kvs}.get(keys.version))
        self._tables.begin(snapshots[keys.tables()])
        self._seats.begin(snapshots[keys.assignments()], running=running)
        self._stores.begin(snapshots[keys.all_stores()])
        self._orders.begin(snapshots[keys.leader_targets()])
        self._set_drain({kv.key: kv for kv in snapshots[self._drain].kvs}.get(self._drain))
        self._set_settings({kv.key: kv for kv in snapshots[keys.settings].kvs}.get(keys.settings))
        self._check_tables()
        self._context.groups.limit_copies(self._tables.limits())
        self._registration.see(
            self._stores.registration(self._context.me.store), at=snapshots[keys.all_stores()].revision
        )
        self.set_peers()
        for table in self._tables.dropped():
            self._drops.touch(table)

    async def watch(self, prefix: str, after: Snapshot) -> None:
        """Follow one of the prefixes, until cancelled."""
        see = self._watches[prefix]
        async for batch in self._context.metastore.watch(prefix, after=after):
            self._guard.saw(batch.revision)
            see(batch)
        raise MetastoreError(f"the watch of {prefix} has ended")

    def _see_partitions(self, batch: WatchBatch) -> None:
        self._context.work.stir_all(self._seats.take(batch))

    def _see_tables(self, batch: WatchBatch) -> None:
        changed = {self._tables.take(event) for event in batch.events}
        for table in changed:
            if self._tables.tombstone(table) is not None:
                self._drops.touch(table)
        mine = [*(seat.partition for seat in self._seats), *self._context.groups.running()]
        self._context.work.stir_all(partition for partition in mine if partition.table in changed)
        self._context.groups.limit_copies(self._tables.limits())
        self._check_tables()

    def _see_stores(self, batch: WatchBatch) -> None:
        for event in batch.events:
            self._stores.take(event)
        if batch.events:
            self.set_peers()
        self._registration.see(self._stores.registration(self._context.me.store), at=batch.revision)

    def _see_orders(self, batch: WatchBatch) -> None:
        self._context.work.stir_all(self._orders.take(event) for event in batch.events)

    def _see_drain(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.key == self._drain:
                self._set_drain(event.kv)

    def _see_version(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.key == self._context.keys.version:
                self._context.version.see(event.kv)
                self._registration.announce()

    def _see_adoption(self, batch: WatchBatch) -> None:
        """End the session where this metastore was adopted while it was followed: what is known of it is over.

        One that was emptied in place looks like the one before as soon as its first table is back.
        """
        for event in batch.events:
            if event.key == self._context.keys.adoption and self._guard.is_new_request(event.kv):
                raise MetastoreError("the metastore was adopted at the user's request; following it with no memory")

    def _set_drain(self, kv: KeyValue | None) -> None:
        """An order for another pod of the same name is not for us."""
        try:
            drain = None if kv is None else decode(Drain, kv.value, key=kv.key)
        except MalformedRecordError as error:
            log.warning("taken as an order to drain: %s", error)
            drain = Drain()
        if drain is not None and drain.pod in ("", self._context.me.pod):
            self._reluctance.add(ORDERED)
        else:
            self._reluctance.remove(ORDERED)

    def _see_settings(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.key == self._context.keys.settings:
                self._set_settings(event.kv)

    def _set_settings(self, kv: KeyValue | None) -> None:
        """Take up the settings of all stores; a record that cannot be read changes nothing."""
        try:
            settings = None if kv is None else decode(StoreSettings, kv.value, key=kv.key)
        except MalformedRecordError as error:
            log.warning("the settings stay as they are: %s", error)
            return
        self._context.tuning.apply(settings)
        self._context.groups.throttle(settings)

    def set_peers(self) -> None:
        """Tell raft where the other stores are."""
        views = (seat.agent.view for seat in self._seats)
        named = {peer.store for view in views if view is not None for peer in view.peers()}
        self._context.groups.set_peers(self._stores.addresses(named=named))

    def _check_tables(self) -> None:
        why = self._guard.nothing_there(tables_empty=self._tables.empty)
        if why:
            raise ClusterMismatchError(why)

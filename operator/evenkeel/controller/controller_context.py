"""What the reconcilers of one controller share: the metastore, the epoch, the clocks, the mirror and the reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, TypeVar

from evenkeel.controller.metastore_mirror import Mirror
from evenkeel.driver import drive, read_at_one_revision
from evenkeel.errors import (
    ClusterMismatchError,
    FencedError,
    MalformedRecordError,
    NoSpaceError,
    UnsupportedVersionError,
)
from evenkeel.metastore.metastore_api import KeyValue, Metastore, Txn, TxnResult
from evenkeel.metastore.operator_epoch import Epoch
from evenkeel.model.conditions import timestamp
from evenkeel.model.storecluster import MetastoreStatus, StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import TableRecord, TableState, decode, read_version
from evenkeel.reconcile.desired_table import table_key
from evenkeel.reconcile.dropped_tables import restored_from
from evenkeel.reconcile.known_stores import KnownStores, read_stores
from evenkeel.reconcile.metastore_adoption import MetastoreSeen, adopting, mismatch, refused_status, with_newest
from evenkeel.reconcile.reconcile_requests import Found, Requests
from evenkeel.reconcile.store_reports import Reports
from evenkeel.reconcile.table_snapshot import TableSnapshot, read_table
from evenkeel.runtime.clock import Clock
from evenkeel.versions import FIRST, check_version

__all__ = ["ControllerContext"]

SPACE_SECONDS: Final = 5.0
"""How long a check that the metastore accepts writes stays valid."""

T = TypeVar("T")


class ControllerContext:
    """Shared state of one controller; `epoch` is None until it is acquired."""

    def __init__(self, metastore: Metastore, *, keys: Keys, clock: Clock, wall_clock: Callable[[], float]) -> None:
        self.metastore = metastore
        self.keys = keys
        self.clock = clock
        self.wall_clock = wall_clock
        self._began: tuple[float, float] | None = None
        self.epoch: Epoch | None = None
        self.mirror = Mirror(keys, clock)
        self.reports = Reports(keys)
        self.seen: MetastoreSeen | None = None
        """The metastore as of the last identity check."""
        self.adopting = ""
        """The adoption request in progress; empty if there is none."""
        self._newest: MetastoreSeen | None = None
        """The newest revision seen of the metastore that the StoreCluster follows."""
        self._refused: MetastoreStatus | None = None
        """What the status must record about a refused metastore."""
        self.newest_version = FIRST
        """The highest cluster version seen, here or in the StoreCluster's status; it never falls."""
        self._space_until = float("-inf")
        self._placing = asyncio.Lock()
        self._written = 0
        """The newest revision written by this controller."""

    def steady(self) -> float:
        """Return seconds since 1970: the wall clock's first reading plus monotonic time since then.

        Durations are measured with it, because a wall clock that jumps by days would replace stores that have just
        left. The next controller may have a different wall clock, so it restarts delays.
        """
        if self._began is None:
            self._began = (self.wall_clock(), self.clock.now())
        wall, since = self._began
        return wall + self.clock.now() - since

    @property
    def held(self) -> Epoch:
        """The epoch, which must have been acquired."""
        assert self.epoch is not None
        return self.epoch

    async def check(self) -> None:
        """Raise FencedError if another controller has taken over; for writes that no transaction fences."""
        self.check_epoch(await self.metastore.get(self.keys.epoch))

    async def begin(self) -> None:
        """Prepare a reconciliation: wait until the mirror has caught up with the metastore.

        Raises FencedError if another controller has taken over, and UnsupportedVersionError if this release does not
        support the cluster version. A reconciliation reads from memory, so an unreachable metastore is detected here.
        """
        await self._check_space()
        found = await self.metastore.range(self.keys.epoch)
        self.check_epoch(next((kv for kv in found.kvs if kv.key == self.keys.epoch), None))
        self._saw(found.revision)
        await self.mirror.follow(found.revision)
        await self.check_version()

    async def check_identity(self, cluster: StoreCluster | None) -> None:
        """Raise ClusterMismatchError if a different metastore answers than the one the StoreCluster follows."""
        if cluster is not None:
            if cluster.status is not None:
                self.newest_version = max(self.newest_version, cluster.status.version)
            cluster = with_newest(cluster, self._newest)  # before the read, which cannot find an earlier revision
        found = await self.metastore.range(self.keys.adoption)
        key = next((kv for kv in found.kvs if kv.key == self.keys.adoption), None)
        empty = self.epoch is None and await self.metastore.get(self.keys.epoch) is None
        self.seen = MetastoreSeen(f"{await self.metastore.cluster_id():x}", found.revision, key, empty)
        self.adopting, self._refused = "", None
        if cluster is not None:
            if why := mismatch(cluster, self.seen):
                self._refused = refused_status(cluster, self.seen)
                raise ClusterMismatchError(why)
            self.adopting = adopting(cluster, self.seen)
        if self.adopting or self._newest is None or self._newest.cluster != self.seen.cluster:
            self._newest = self.seen
        self._saw(found.revision)

    def metastore_to_record(self, cluster: StoreCluster) -> MetastoreStatus | None:
        """Return what the status must record before this controller discards its knowledge of the metastore."""
        noted = with_newest(cluster, self._newest).status
        return self._refused or (None if noted is None else noted.metastore)

    async def check_version(self) -> int:
        """Return the cluster version; raise UnsupportedVersionError if it is unsupported or unreadable."""
        kv = await self.version()
        try:
            version = read_version(None if kv is None else kv.value, key=self.keys.version)
        except MalformedRecordError as error:
            raise UnsupportedVersionError(
                f"the cluster version cannot be read, so reconciliation is suspended: {error}; write the correct one, "
                "which is `cluster_version` in the /status of the stores' sidecars"
            ) from error
        check_version(version, of=f"the StoreCluster of {self.keys.root}")
        self.newest_version = max(self.newest_version, version)
        return version

    async def _check_space(self) -> None:
        """Raise NoSpaceError if the metastore refuses writes; an unchanged table writes none and would not notice."""
        if self.clock.now() < self._space_until:
            return
        if why := await self.metastore.full():
            raise NoSpaceError(why)
        self._space_until = self.clock.now() + SPACE_SECONDS

    def check_epoch(self, kv: KeyValue | None) -> None:
        """Raise FencedError if the epoch's key has changed since this controller acquired it."""
        if kv is None or kv.mod_revision != self.held.mod_revision:
            holder = kv.value.decode(errors="replace") if kv is not None else "nobody"
            raise FencedError(
                f"{self.held.holder} no longer holds {self.keys.epoch}, {holder} does; this controller stops"
            )

    def now(self) -> str:
        """Return the current time in the format of statuses."""
        return timestamp(datetime.fromtimestamp(self.wall_clock(), UTC))

    # Writing

    async def drive(self, requests: Requests[T]) -> T:
        """Run a reconciliation's requests."""
        return await drive(requests, metastore=self.metastore, epoch=self.held, read=self._read, wrote=self._wrote)

    async def place(self, requests: Requests[T]) -> T:
        """Run a reconciliation that may write a plan.

        If stores have caps, tables are planned one at a time: each has to count what the others use.
        """
        if not (await self.stores()).capped:
            return await self.drive(requests)
        async with self._placing:
            return await self.drive(requests)

    async def commit_all(self, txns: Iterable[Txn]) -> bool:
        """Run transactions; return whether all of them succeeded."""
        results = [await self.metastore.txn(txn) for txn in txns]
        for result in results:
            self._wrote(result)
        return all(result.succeeded for result in results)

    def _wrote(self, result: TxnResult) -> None:
        if result.succeeded:
            self._written = max(self._written, result.revision)
            self._saw(result.revision)

    def _saw(self, revision: int) -> None:
        if self._newest is not None and self._newest.revision < revision:
            self._newest = self._newest._replace(revision=revision)

    # Reading

    @property
    def complete(self) -> bool:
        """Whether the metastore names every replica, so that a store it does not name holds none.

        That is not so during an adoption, until the leaders have published the stable keys of every adopted table.
        """
        if self.adopting or not self.mirror.shows(self._written):
            return False
        return all(self._is_seeded(kv) for kv in self.mirror.all_of("tables"))

    def _is_seeded(self, kv: KeyValue) -> bool:
        if b'"adopted"' not in kv.value:
            return True
        try:
            record = decode(TableRecord, kv.value, key=kv.key)
        except MalformedRecordError:
            return False
        published = self.mirror.count("partition.assignments.stable", kv.key.removeprefix(self.keys.table("")))
        return record.state is not TableState.READY or published >= record.partitions

    async def snapshot(self, table: str) -> TableSnapshot:
        """Read a table's keys at one revision."""
        return TableSnapshot(self.keys, table, await self._read(read_table(self.keys, table).prefixes))

    async def get(self, key: str) -> KeyValue | None:
        """Read one key, except those under `stores`."""
        return (await self._read((key,))).kvs.get(key)

    async def key_of(self, table: Table) -> str:
        """Return the key of a table's data: it has the Table's uid, or that of the Table it was restored from.

        A metastore that is being adopted may not have the restoration; then the Table's annotation decides.
        """
        own = table_key(table)
        kv = await self.get(self.keys.restored(own))
        if kv is not None:
            return decode(str, kv.value, key=kv.key)
        lost = bool(self.adopting) and await self.get(self.keys.table(own)) is None
        return (restored_from(table) if lost else "") or own

    async def records(self) -> Iterable[KeyValue]:
        """Return the records of all tables, including deleted ones with retained data."""
        return await self._all("tables")

    async def tombstones(self) -> Iterable[KeyValue]:
        """Return the tombstones of all tables that are being dropped."""
        return await self._all("tables.dropped")

    async def _all(self, kind: str) -> Iterable[KeyValue]:
        if await self.mirror.reached(self._written):
            return self.mirror.all_of(kind)
        return (await self.metastore.range(f"{self.keys.root}{kind}/")).kvs

    async def stores(self) -> KnownStores:
        """Return all stores."""
        if await self.mirror.reached(self._written):
            return self.mirror.stores()
        return read_stores((await self.metastore.range(self.keys.all_stores())).kvs, self.keys)

    async def version(self) -> KeyValue | None:
        """Return the key of the cluster version."""
        if await self.mirror.reached(self._written):
            return self.mirror.read((self.keys.version,)).kvs.get(self.keys.version)
        return await self.metastore.get(self.keys.version)

    async def assignments(self) -> Iterable[KeyValue]:
        """Return every key that names a current or future replica."""
        if await self.mirror.reached(self._written):
            return self.mirror.assignments()
        return (await self.metastore.range(self.keys.assignments())).kvs

    async def _read(self, prefixes: tuple[str, ...]) -> Found:
        if await self.mirror.reached(self._written):
            return self.mirror.read(prefixes)
        return await read_at_one_revision(self.metastore, prefixes)

"""The metastore in memory: `Mvcc` behind the asynchronous interface, with watches and a clock for leases.

It behaves like etcd; the conformance tests and random transactions check that. Instances must not share an `Mvcc`,
except through `clone()`: a change that bypasses an instance does not wake its watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TypeVar

from evenkeel.errors import CompactedError, MetastoreError
from evenkeel.metastore._diff import difference
from evenkeel.metastore.metastore_api import Event, KeyValue, Snapshot, Txn, TxnResult, WatchBatch
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.runtime.clock import Clock, SystemClock, Timer

__all__ = ["MemoryLease", "MemoryMetastore"]

_T = TypeVar("_T")


class MemoryMetastore:
    """Implements `Metastore` without a server."""

    def __init__(self, *, clock: Clock | None = None, cluster_id: int = 1, mvcc: Mvcc | None = None) -> None:
        self._mvcc = mvcc or Mvcc()
        self._clock = clock or SystemClock()
        self._cluster_id = cluster_id
        self._changed = asyncio.Event()
        self._closed = False
        self._timers: dict[int, Timer] = {}

    async def get(self, key: str) -> KeyValue | None:
        """Read one key."""
        return self._do(lambda: self._mvcc.get(key))

    async def range(self, prefix: str, *, revision: int = 0) -> Snapshot:
        """Return all keys under `prefix` at one revision (0: the newest)."""
        return self._do(lambda: self._mvcc.range(prefix, revision))

    async def txn(self, txn: Txn) -> TxnResult:
        """Run one transaction."""
        return self._do(lambda: self._mvcc.txn(txn))

    async def watch(self, prefix: str, *, after: Snapshot) -> AsyncIterator[WatchBatch]:
        """Yield every change under `prefix` after `after.revision`, exactly once and in order."""
        known = {kv.key: kv.mod_revision for kv in after.kvs if kv.key.startswith(prefix)}
        revision = after.revision
        while not self._closed:
            if self._mvcc.revision > revision:
                batch = self._since(prefix, revision, known)
                _note(known, batch.events)
                revision = batch.revision
                yield batch
            else:
                await self._changed.wait()

    async def lease(self, ttl: float) -> MemoryLease:
        """Grant a lease of `ttl` seconds."""
        lease_id = self._do(self._mvcc.grant_lease)
        lease = MemoryLease(lease_id, ttl, self)
        self.set_expiry(lease)
        return lease

    async def cluster_id(self) -> int:
        """Return the id given to the constructor."""
        return self._cluster_id

    async def forget(self) -> None:
        """Do nothing: the store cannot change."""

    async def full(self) -> str:
        """Return nothing: there is no quota."""
        return ""

    async def compact(self, revision: int) -> None:
        """Remove the history up to `revision`, as etcd does periodically."""
        self._do(lambda: self._mvcc.compact(revision))

    async def close(self) -> None:
        """End all watches; the instance cannot be used afterwards."""
        self._closed = True
        self._wake()
        for timer in self._timers.values():
            timer.cancel()

    async def __aenter__(self) -> MemoryMetastore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def set_expiry(self, lease: MemoryLease) -> bool:
        """Restart the lease's time to live; return False if it no longer exists."""
        self._cancel_expiry(lease)
        if lease.id not in self._mvcc.leases:
            return False
        self._timers[lease.id] = self._clock.call_at(self._clock.now() + lease.ttl, lambda: self.end(lease))
        return True

    def end(self, lease: MemoryLease) -> None:
        """Delete the lease with its keys, if it still exists."""
        self._cancel_expiry(lease)
        if lease.id in self._mvcc.leases:
            self._do(lambda: self._mvcc.revoke_lease(lease.id))

    def _cancel_expiry(self, lease: MemoryLease) -> None:
        timer = self._timers.pop(lease.id, None)
        if timer is not None:
            timer.cancel()

    def _do(self, action: Callable[[], _T]) -> _T:
        """Run one action of the store, and wake the watches if it changed something."""
        if self._closed:
            raise MetastoreError("the metastore client is closed; create a new one")
        before = self._mvcc.revision
        result = action()
        if self._mvcc.revision != before:
            self._wake()
        return result

    def _wake(self) -> None:
        """Wake all waiting watches; later waits need another change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _since(self, prefix: str, revision: int, known: dict[str, int]) -> WatchBatch:
        try:
            events = tuple(self._mvcc.changes(prefix, revision))
        except CompactedError:
            events = difference(known, self._mvcc.range(prefix))
        return WatchBatch(self._mvcc.revision, events)


class MemoryLease:
    """A lease that expires by the metastore's clock."""

    def __init__(self, lease_id: int, ttl: float, metastore: MemoryMetastore) -> None:
        self.id = lease_id
        self.ttl = ttl
        self._metastore = metastore

    async def refresh(self) -> bool:
        """Extend the lease once; return False if it no longer exists."""
        return self._metastore.set_expiry(self)

    async def revoke(self) -> None:
        """End the lease and delete its keys now; do nothing if it no longer exists."""
        self._metastore.end(self)


def _note(known: dict[str, int], events: tuple[Event, ...]) -> None:
    for event in events:
        if event.kv is None:
            known.pop(event.key, None)
        else:
            known[event.key] = event.mod_revision

"""Fence off operators that lost their Lease, by an epoch key.

A Kubernetes Lease alone does not fence: its holder may be paused, lose the Lease, resume and write. So an operator that
takes over writes the epoch key, and each of its transactions compares that key with its own write. Once a successor has
written the epoch, no write of the predecessor can succeed, no matter how late it arrives.

Each fenced transaction also reads the epoch key if it fails, to distinguish a lost epoch from a conflicting change.
This uses one comparison and one operation of `failure`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from evenkeel.errors import FencedError
from evenkeel.metastore.metastore_api import (
    Compare,
    Get,
    KeyValue,
    Lease,
    Metastore,
    Put,
    Snapshot,
    Txn,
    TxnResult,
    WatchBatch,
    unchanged,
)

__all__ = ["Epoch", "FencedMetastore", "acquire_epoch", "fenced", "unfenced"]


class Epoch(msgspec.Struct, frozen=True):
    """The epoch as one operator wrote it."""

    key: str
    holder: str
    mod_revision: int

    @property
    def compare(self) -> Compare:
        """The comparison that holds until another operator takes the epoch."""
        return Compare(self.key, "mod", "=", self.mod_revision)


class _Record(msgspec.Struct):
    """The value of the epoch key, for display only."""

    holder: str


async def acquire_epoch(metastore: Metastore, key: str, holder: str) -> Epoch:
    """Take the epoch; from then on the previous holder's fenced writes fail."""
    put = Put(key, msgspec.json.encode(_Record(holder)))
    while True:
        before = await metastore.get(key)
        result = await metastore.txn(Txn((unchanged(key, before),), (put,)))
        if result.succeeded:
            return Epoch(key, holder, result.revision)


def fenced(txn: Txn, epoch: Epoch) -> Txn:
    """Return the transaction with the epoch's comparison; pass its result to `unfenced`."""
    return Txn((epoch.compare, *txn.compares), txn.success, (*txn.failure, Get(epoch.key)))


def unfenced(result: TxnResult, epoch: Epoch) -> TxnResult:
    """Return the original transaction's result; raise FencedError if the epoch was lost."""
    if result.succeeded:
        return result
    *results, fence = result.results
    if not fence.kvs or fence.kvs[0].mod_revision != epoch.mod_revision:
        raise FencedError(_fenced_message(epoch, fence.kvs[0] if fence.kvs else None))
    return TxnResult(False, result.revision, tuple(results))


class FencedMetastore:
    """A metastore that fences each transaction by one epoch and passes other calls through."""

    def __init__(self, metastore: Metastore, epoch: Epoch) -> None:
        self._metastore = metastore
        self.epoch = epoch

    async def get(self, key: str) -> KeyValue | None:
        """Read one key, linearizably."""
        return await self._metastore.get(key)

    async def range(self, prefix: str, *, revision: int = 0) -> Snapshot:
        """Return all keys under `prefix` at one revision."""
        return await self._metastore.range(prefix, revision=revision)

    async def txn(self, txn: Txn) -> TxnResult:
        """Run one fenced transaction; raise FencedError, with nothing changed, if the epoch was lost."""
        return unfenced(await self._metastore.txn(fenced(txn, self.epoch)), self.epoch)

    def watch(self, prefix: str, *, after: Snapshot) -> AsyncIterator[WatchBatch]:
        """Yield every change under `prefix` after `after.revision`."""
        return self._metastore.watch(prefix, after=after)

    async def lease(self, ttl: float) -> Lease:
        """Grant a lease; it needs no fence, because only fenced writes use it."""
        return await self._metastore.lease(ttl)

    async def cluster_id(self) -> int:
        """Return the identity of the etcd cluster."""
        return await self._metastore.cluster_id()

    async def forget(self) -> None:
        """Accept whichever etcd cluster answers next."""
        await self._metastore.forget()

    async def full(self) -> str:
        """Return why writes are refused for lack of space."""
        return await self._metastore.full()

    async def close(self) -> None:
        """Close the underlying metastore."""
        await self._metastore.close()


def _fenced_message(epoch: Epoch, now: KeyValue | None) -> str:
    successor = f"{now.value.decode(errors='replace')} took it" if now else "its key was deleted"
    return (
        f"{epoch.holder!r} no longer holds the epoch {epoch.key}: {successor}; nothing was written, and this "
        "process must stop writing"
    )

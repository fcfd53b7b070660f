"""The epoch: how an operator that has lost its Lease is kept from writing.

A Kubernetes Lease alone does not fence: its holder may be paused, lose it, wake up and write. So whoever takes over
writes the epoch key, and every transaction of an operator compares that key with what it wrote itself. Once a
successor has taken the epoch, no write of the predecessor can succeed, however late it arrives.

Each fenced transaction also reads the epoch key where it fails, so that "you are no longer in charge" is never
mistaken for "somebody changed what you read". It uses up one comparison and one operation of `failure`.
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
    """One operator's time in charge."""

    key: str
    holder: str
    mod_revision: int

    @property
    def compare(self) -> Compare:
        """Holds until somebody else takes the epoch."""
        return Compare(self.key, "mod", "=", self.mod_revision)


class _Record(msgspec.Struct):
    """What the epoch key holds, for people who look."""

    holder: str


async def acquire_epoch(metastore: Metastore, key: str, holder: str) -> Epoch:
    """Take the epoch: from here on, whoever held it before cannot write."""
    put = Put(key, msgspec.json.encode(_Record(holder)))
    while True:
        before = await metastore.get(key)
        result = await metastore.txn(Txn((unchanged(key, before),), (put,)))
        if result.succeeded:
            return Epoch(key, holder, result.revision)


def fenced(txn: Txn, epoch: Epoch) -> Txn:
    """The transaction that succeeds only while `epoch` lasts; its result goes through `unfenced`."""
    return Txn((epoch.compare, *txn.compares), txn.success, (*txn.failure, Get(epoch.key)))


def unfenced(result: TxnResult, epoch: Epoch) -> TxnResult:
    """The result of the transaction that was fenced; FencedError when the fence is what stopped it."""
    if result.succeeded:
        return result
    *results, fence = result.results
    if not fence.kvs or fence.kvs[0].mod_revision != epoch.mod_revision:
        raise FencedError(_fenced_message(epoch, fence.kvs[0] if fence.kvs else None))
    return TxnResult(False, result.revision, tuple(results))


class FencedMetastore:
    """A metastore whose every transaction is fenced by one epoch; all else passes through."""

    def __init__(self, metastore: Metastore, epoch: Epoch) -> None:
        self._metastore = metastore
        self.epoch = epoch

    async def get(self, key: str) -> KeyValue | None:
        """Read one key, linearizably."""
        return await self._metastore.get(key)

    async def range(self, prefix: str, *, revision: int = 0) -> Snapshot:
        """All keys under `prefix` at one revision."""
        return await self._metastore.range(prefix, revision=revision)

    async def txn(self, txn: Txn) -> TxnResult:
        """Run one transaction if the epoch lasts; FencedError, and nothing changed, if it does not."""
        return unfenced(await self._metastore.txn(fenced(txn, self.epoch)), self.epoch)

    def watch(self, prefix: str, *, after: Snapshot) -> AsyncIterator[WatchBatch]:
        """Every change under `prefix` past `after.revision`."""
        return self._metastore.watch(prefix, after=after)

    async def lease(self, ttl: float) -> Lease:
        """Grant a lease; a lease without fenced writes changes nothing."""
        return await self._metastore.lease(ttl)

    async def cluster_id(self) -> int:
        """The identity of the etcd cluster."""
        return await self._metastore.cluster_id()

    async def forget(self) -> None:
        """Work with whatever etcd answers next."""
        await self._metastore.forget()

    async def full(self) -> str:
        """Why it refuses every write for lack of space."""
        return await self._metastore.full()

    async def close(self) -> None:
        """Close the metastore behind it."""
        await self._metastore.close()


def _fenced_message(epoch: Epoch, now: KeyValue | None) -> str:
    successor = f"{now.value.decode(errors='replace')} took it" if now else "its key was deleted"
    return (
        f"{epoch.holder!r} no longer holds the epoch {epoch.key}: {successor}; nothing was written, and this "
        "process must stop writing"
    )

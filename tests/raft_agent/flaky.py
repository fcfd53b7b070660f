"""A metastore that can be unavailable, lose responses, delay transactions, or be replaced by another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from evenkeel.errors import ClusterMismatchError, NoSpaceError, RefusedError, UnreachableError
from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import KeyValue, Lease, Put, Snapshot, Txn, TxnResult, WatchBatch


class FlakyMetastore:
    """One process's connection to a shared metastore; implements `Metastore`."""

    def __init__(self, behind: MemoryMetastore) -> None:
        self._behind = behind
        self._back = asyncio.Event()
        self._back.set()
        self._showing = asyncio.Event()
        self._showing.set()
        self.lose_answer: Callable[[Txn], bool] = lambda _: False
        """Transactions that take effect but whose response is lost."""
        self.drop: Callable[[Txn], bool] = lambda _: False
        """Transactions that are lost before they take effect."""
        self.hold: Callable[[Txn], bool] = lambda _: False
        """Transactions that wait for `release` before they are executed."""
        self.refuse: Callable[[Txn], bool] = lambda _: False
        """Transactions that are rejected."""
        self.space = True
        """Whether writes are accepted; an etcd whose quota is used up still serves reads and keeps leases alive."""
        self._released = asyncio.Event()
        self.holding = 0
        self.txns: list[Txn] = []

    # Called by tests

    def leave(self) -> None:
        """Become unavailable."""
        self._back.clear()

    def come_back(self) -> None:
        """Become available again."""
        self._back.set()

    def blind(self) -> None:
        """Stop delivering watch events."""
        self._showing.clear()

    def unblind(self) -> None:
        """Deliver watch events again."""
        self._showing.set()

    def release(self) -> None:
        """Execute the held transactions."""
        self._released.set()
        self._released = asyncio.Event()

    def become(self, other: MemoryMetastore) -> None:
        """Become another metastore, as if etcd had been replaced."""
        self._behind = other

    @property
    def away(self) -> bool:
        return not self._back.is_set()

    # Called by agents

    async def get(self, key: str) -> KeyValue | None:
        self._answer()
        return await self._behind.get(key)

    async def range(self, prefix: str, *, revision: int = 0) -> Snapshot:
        self._answer()
        return await self._behind.range(prefix, revision=revision)

    async def txn(self, txn: Txn) -> TxnResult:
        self._answer()
        self.txns.append(txn)
        self._check_space(txn)
        if self.hold(txn):
            self.holding += 1
            await self._released.wait()
        if self.refuse(txn):
            raise RefusedError("the request is too large")
        if self.drop(txn):
            raise UnreachableError("the request was lost")
        result = await self._behind.txn(txn)
        if self.lose_answer(txn):
            raise UnreachableError("the answer was lost")
        return result

    async def watch(self, prefix: str, *, after: Snapshot) -> AsyncIterator[WatchBatch]:
        behind = self._behind
        async for batch in behind.watch(prefix, after=after):
            await self._back.wait()
            await self._showing.wait()
            if self._behind is not behind:
                raise ClusterMismatchError("another etcd cluster answers than before")
            yield batch

    def _check_space(self, txn: Txn) -> None:
        if not self.space and any(isinstance(op, Put) for op in (*txn.success, *txn.failure)):
            raise NoSpaceError("etcd has used up its quota")

    async def lease(self, ttl: float) -> Lease:
        self._answer()
        if not self.space:
            raise NoSpaceError("etcd has used up its quota")
        return _FlakyLease(await self._behind.lease(ttl), self)

    async def forget(self) -> None:
        await self._behind.forget()

    async def full(self) -> str:
        self._answer()
        return await self._behind.full()

    async def cluster_id(self) -> int:
        self._answer()
        return await self._behind.cluster_id()

    async def close(self) -> None:
        """The shared metastore stays open."""

    def _answer(self) -> None:
        if self.away:
            raise UnreachableError("no etcd endpoint answers")


class _FlakyLease:
    def __init__(self, behind: Lease, way: FlakyMetastore) -> None:
        self.id = behind.id
        self.ttl = behind.ttl
        self._behind = behind
        self._way = way

    async def refresh(self) -> bool:
        if self._way.away:
            raise UnreachableError("no etcd endpoint answers")
        return await self._behind.refresh()

    async def revoke(self) -> None:
        if self._way.away:
            raise UnreachableError("no etcd endpoint answers")
        await self._behind.revoke()

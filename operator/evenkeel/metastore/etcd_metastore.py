"""The metastore on etcd.

Reads are linearizable and tried again, also at other endpoints, until the request's time is up. A transaction is
sent once: when its answer is lost, UnreachableError says that it may have taken effect. Large prefixes are listed in
pages at one revision.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import weakref
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import grpc
from aetcd import rpc

from evenkeel.errors import AuthenticationError, ClusterMismatchError, CompactedError, LeaseNotFoundError
from evenkeel.metastore._etcd_codec import (
    decode_kv,
    decode_txn,
    encode_get,
    encode_range,
    encode_reads,
    encode_txn,
    has_costly_failure,
    prefix_bounds,
    writes,
)
from evenkeel.metastore._etcd_connection import Connection, Opener
from evenkeel.metastore._etcd_errors import NO_SPACE
from evenkeel.metastore._etcd_requests import Link, Method
from evenkeel.metastore._etcd_watch import Watch
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.metastore.metastore_api import KeyValue, Snapshot, Txn, TxnResult, WatchBatch

__all__ = ["EtcdLease", "EtcdMetastore", "EtcdSettings"]


class EtcdMetastore:
    """Implements `Metastore`; connects with the first request, and is an async context manager that closes."""

    def __init__(self, settings: EtcdSettings | None = None) -> None:
        self._settings = settings or EtcdSettings()
        self._opener = Opener(self._settings)
        self._link = Link(self._settings, self._opener)
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._newest = 0

    async def get(self, key: str) -> KeyValue | None:
        """Read one key, linearizably."""
        response = await self._call(_range, encode_get(key), repeatable=True)
        return decode_kv(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: str, *, revision: int = 0) -> Snapshot:
        """All keys under `prefix` at one revision (0: the newest, linearizably), however many there are."""
        while True:
            try:
                return await self._list(prefix, revision)
            except CompactedError:
                # A listing of the newest state can be overtaken by a compaction between two of its pages.
                if revision:
                    raise

    async def txn(self, txn: Txn) -> TxnResult:
        """Run one transaction. An UnreachableError leaves open whether it took effect."""
        if has_costly_failure(txn):
            return await self._txn_then_read(txn)
        return await self._txn(txn)

    def watch(self, prefix: str, *, after: Snapshot) -> AsyncIterator[WatchBatch]:
        """Every change under `prefix` past `after.revision`, each exactly once and in order."""
        watch = Watch(
            after,
            prefix=prefix,
            opener=self._opener,
            settings=self._settings,
            list_anew=lambda: self.range(prefix),
        )
        self._watches.add(watch)
        return watch.batches()

    async def lease(self, ttl: float) -> EtcdLease:
        """Grant a lease of at least `ttl` seconds; etcd counts in whole seconds and has a minimum of its own."""
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl))
        # A grant whose answer is lost leaves a lease without keys, which ends by itself.
        response = await self._link.call(_grant, request, repeatable=True)
        return EtcdLease(response.ID, float(response.TTL), self._link)

    async def cluster_id(self) -> int:
        """The identity of this etcd cluster: another or a fresh one answers another number."""
        deadline = asyncio.get_running_loop().time() + self._settings.request_timeout
        return (await self._link.connection(deadline)).cluster_id

    async def forget(self) -> None:
        """Work with whatever etcd answers next: the caller judges by its own memory whether it is the right one."""
        self._newest = 0
        self._opener.forget_cluster()
        self._link.drop()

    async def full(self) -> str:
        """Why etcd refuses every write for lack of space; empty if it does not, or if we may not ask."""
        try:
            answer = await self._link.call(_alarm, rpc.AlarmRequest(alarm=rpc.NOSPACE), repeatable=True)
        except AuthenticationError:
            return ""
        return NO_SPACE if answer.alarms else ""

    async def close(self) -> None:
        """Release connections and end all watches; the instance cannot be used afterwards."""
        await asyncio.gather(*(watch.close() for watch in list(self._watches)))
        await self._link.close()

    async def __aenter__(self) -> EtcdMetastore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _txn(self, txn: Txn) -> TxnResult:
        return decode_txn(txn, await self._call(_txn, encode_txn(txn), repeatable=not writes(txn)))

    async def _txn_then_read(self, txn: Txn) -> TxnResult:
        """Spare the reads of `failure` the way through raft and every member's log.

        A transaction that fails without writing leaves the revision at which its comparisons were made, and reading
        at that revision afterwards finds exactly what its own reads would have found.
        """
        result = await self._txn(Txn(txn.compares, txn.success))
        if result.succeeded:
            return result
        try:
            reads = encode_reads(txn.failure, revision=result.revision)
            response = await self._call(_txn, reads, repeatable=True)
        except CompactedError:
            # The first attempt changed nothing, so the whole may be tried as if it had not been.
            return await self._txn(txn)
        return TxnResult(False, result.revision, decode_txn(Txn(success=txn.failure), response).results)

    async def _call(self, method: Method, request: Any, *, repeatable: bool) -> Any:
        """One linearizable request, which can never see less than what was seen before it was sent."""
        seen = self._newest
        response = await self._link.call(method, request, repeatable=repeatable)
        revision = response.header.revision
        if revision < seen:
            raise ClusterMismatchError(
                f"etcd is at revision {revision}, but {seen} has been seen: it was emptied or restored from a "
                "backup; restart only after making sure that its data is right"
            )
        self._newest = max(self._newest, revision)
        return response

    async def _list(self, prefix: str, revision: int) -> Snapshot:
        start, end = prefix_bounds(prefix)
        kvs: list[KeyValue] = []
        more = True
        while more:
            page = encode_range(start, end, limit=self._settings.page_keys, revision=revision)
            response = await self._call(_range, page, repeatable=True)
            kvs += [decode_kv(kv) for kv in response.kvs]
            revision = revision or response.header.revision
            more = response.more
            start = response.kvs[-1].key + b"\0" if more else start
        return Snapshot(prefix, revision, tuple(kvs))


class EtcdLease:
    """A lease on etcd; `ttl` is what etcd granted."""

    def __init__(self, lease_id: int, ttl: float, link: Link) -> None:
        self.id = lease_id
        self.ttl = ttl
        self._link = link

    async def refresh(self) -> bool:
        """Extend the lease once; False when it is gone."""
        response = await self._link.call(_keep_alive, rpc.LeaseKeepAliveRequest(ID=self.id), repeatable=True)
        return bool(response.TTL > 0)

    async def revoke(self) -> None:
        """End the lease and delete its keys now; nothing happens when it is gone already."""
        with contextlib.suppress(LeaseNotFoundError):
            await self._link.call(_revoke, rpc.LeaseRevokeRequest(ID=self.id), repeatable=True)


def _range(connection: Connection) -> Any:
    return connection.kv.Range


def _txn(connection: Connection) -> Any:
    return connection.kv.Txn


def _grant(connection: Connection) -> Any:
    return connection.lease.LeaseGrant


def _revoke(connection: Connection) -> Any:
    return connection.lease.LeaseRevoke


def _alarm(connection: Connection) -> Any:
    return connection.maintenance.Alarm


def _keep_alive(connection: Connection) -> Any:
    """Etcd offers keep-alives only as a stream; one request on it is a call like any other."""

    async def once(request: Any, **options: Any) -> Any:
        answers = [answer async for answer in connection.lease.LeaseKeepAlive(iter([request]), **options)]
        if not answers:
            raise rpc.AioRpcError(
                rpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="no answer"
            )
        return answers[0]

    return once

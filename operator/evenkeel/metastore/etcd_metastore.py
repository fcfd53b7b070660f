"""The metastore on etcd.

Reads are linearizable and retried until the request's timeout, also at other endpoints. A transaction is sent once: if
its response is lost, an UnreachableError reports that its outcome is unknown. Large prefixes are listed in pages at one
revision.
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
    """Implements `Metastore`; connects on the first request. An async context manager that closes."""

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
        """Return all keys under `prefix` at one revision (0: the newest, linearizably)."""
        while True:
            try:
                return await self._list(prefix, revision)
            except CompactedError:
                # A compaction between two pages can remove the revision that is listed.
                if revision:
                    raise

    async def txn(self, txn: Txn) -> TxnResult:
        """Run one transaction. After an UnreachableError its outcome is unknown."""
        if has_costly_failure(txn):
            return await self._txn_then_read(txn)
        return await self._txn(txn)

    def watch(self, prefix: str, *, after: Snapshot) -> AsyncIterator[WatchBatch]:
        """Yield every change under `prefix` after `after.revision`, exactly once and in order."""
        watch = Watch(
            after,
            prefix=prefix,
            opener=self._opener,
            settings=self._settings,
            list_again=lambda: self.range(prefix),
        )
        self._watches.add(watch)
        return watch.batches()

    async def lease(self, ttl: float) -> EtcdLease:
        """Grant a lease of at least `ttl` seconds; etcd rounds up to whole seconds and has a minimum."""
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl))
        # A grant whose response is lost leaves a lease without keys, which expires.
        response = await self._link.call(_grant, request, repeatable=True)
        return EtcdLease(response.ID, float(response.TTL), self._link)

    async def cluster_id(self) -> int:
        """Return the identity of this etcd cluster."""
        deadline = asyncio.get_running_loop().time() + self._settings.request_timeout
        return (await self._link.connection(deadline)).cluster_id

    async def forget(self) -> None:
        """Accept whichever etcd cluster answers next; the caller checks whether it is the right one."""
        self._newest = 0
        self._opener.forget_cluster()
        self._link.drop()

    async def full(self) -> str:
        """Return why etcd refuses writes for lack of space; empty if it does not, or without permission to ask."""
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
        """Run the reads of `failure` separately, so that they do not go through raft and every member's log.

        A failed transaction that writes nothing returns the revision at which its comparisons were evaluated. Reading
        at that revision afterwards returns exactly what its own reads would have returned.
        """
        result = await self._txn(Txn(txn.compares, txn.success))
        if result.succeeded:
            return result
        try:
            reads = encode_reads(txn.failure, revision=result.revision)
            response = await self._call(_txn, reads, repeatable=True)
        except CompactedError:
            # The first attempt changed nothing, so the whole transaction can run again.
            return await self._txn(txn)
        return TxnResult(False, result.revision, decode_txn(Txn(success=txn.failure), response).results)

    async def _call(self, method: Method, request: Any, *, repeatable: bool) -> Any:
        """Send a linearizable request; its revision must not be lower than any seen before it was sent."""
        seen = self._newest
        response = await self._link.call(method, request, repeatable=repeatable)
        revision = response.header.revision
        if revision < seen:
            raise ClusterMismatchError(
                f"etcd is at revision {revision}, but {seen} has been seen: it was emptied or restored from a "
                "backup; check that its data is right, then restart"
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
    """A lease on etcd; `ttl` is the time to live that etcd granted."""

    def __init__(self, lease_id: int, ttl: float, link: Link) -> None:
        self.id = lease_id
        self.ttl = ttl
        self._link = link

    async def refresh(self) -> bool:
        """Extend the lease once; return False if it no longer exists."""
        response = await self._link.call(_keep_alive, rpc.LeaseKeepAliveRequest(ID=self.id), repeatable=True)
        return bool(response.TTL > 0)

    async def revoke(self) -> None:
        """End the lease and delete its keys now; do nothing if it no longer exists."""
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
    """Return a unary call for keep-alives, which etcd offers only as a stream."""

    async def once(request: Any, **options: Any) -> Any:
        answers = [answer async for answer in connection.lease.LeaseKeepAlive(iter([request]), **options)]
        if not answers:
            raise rpc.AioRpcError(
                rpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="no answer"
            )
        return answers[0]

    return once

"""A watch that survives disconnects and compaction.

Its state is the revision up to which all changes have been delivered, and the mod revision of each delivered key. A new
stream starts *at* that revision, not after it, and skips what was delivered: if etcd has compacted exactly the next
revision, versions before 3.5.18 silently omit its deletions, while a start at a compacted revision is always refused.
If it is refused, the prefix is listed again, and the difference to the delivered state replaces the lost history.

An idle stream periodically requests its progress. The response advances the revision, so that compaction rarely
overtakes it. Without a response the server is stuck, and the watch moves to another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from aetcd import rpc

from evenkeel.errors import ClusterMismatchError, UnreachableError
from evenkeel.metastore._diff import difference
from evenkeel.metastore._etcd_codec import decode_events, prefix_bounds
from evenkeel.metastore._etcd_connection import Connection, Metadata, Opener
from evenkeel.metastore._etcd_errors import is_stale_token, is_transient, reason, translate
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.metastore.metastore_api import Snapshot, WatchBatch
from evenkeel.runtime.backoff import Backoff

__all__ = ["Watch"]

log = logging.getLogger(__name__)

_ALL_WATCHES = -1
_TRUSTED_PROGRESS = (3, 5, 8)
"""Older servers may answer a progress request before they have sent all events up to it (etcd #15220)."""


class _BrokenError(Exception):
    """The stream is broken; another one must continue."""


class _CompactedError(Exception):
    """The server has compacted the revision that the stream needs."""


class Watch:
    """Follows one prefix, starting after a snapshot."""

    def __init__(
        self,
        after: Snapshot,
        *,
        prefix: str,
        opener: Opener,
        settings: EtcdSettings,
        list_again: Callable[[], Awaitable[Snapshot]],
    ) -> None:
        self._prefix = prefix
        self._revision = after.revision
        self._known = {kv.key: kv.mod_revision for kv in after.kvs if kv.key.startswith(prefix)}
        self._opener = opener
        self._settings = settings
        self._list_again = list_again
        self._stream: _Stream | None = None
        self._backoff = Backoff()
        self._waiting: asyncio.Task[WatchBatch | None] | None = None
        self._closed = False

    async def batches(self) -> AsyncIterator[WatchBatch]:
        """Yield all changes until the watch is closed; raise if etcd turns out to be another cluster."""
        try:
            while not self._closed:
                self._waiting = asyncio.ensure_future(self._next())
                batch = await self._waiting
                if batch is not None:
                    yield batch
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or task is None or task.cancelling():
                raise
        finally:
            await self._close_stream()

    async def close(self) -> None:
        """End the iteration."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        await self._close_stream()

    async def _next(self) -> WatchBatch | None:
        """Return the next batch, or None if the stream broke and the caller must retry."""
        try:
            stream = self._stream = self._stream or await self._open_stream()
            batch = await stream.next_batch(after=self._revision)
        except _CompactedError:
            return await self._catch_up()
        except _BrokenError as error:
            await self._recover(str(error))
            return None
        return self._deliver(batch)

    def _deliver(self, batch: WatchBatch) -> WatchBatch:
        self._backoff.reset()
        self._revision = batch.revision
        for event in batch.events:
            if event.kv is None:
                self._known.pop(event.key, None)
            else:
                self._known[event.key] = event.mod_revision
        return batch

    async def _catch_up(self) -> WatchBatch | None:
        """Replace compacted history by a new listing."""
        await self._close_stream()
        log.info("watch of %s: revision %d is compacted; listing again", self._prefix, self._revision)
        try:
            snapshot = await self._list_again()
        except UnreachableError as error:
            await self._recover(str(error))
            return None
        self._check_revision(snapshot.revision)
        return self._deliver(WatchBatch(snapshot.revision, difference(self._known, snapshot)))

    async def _recover(self, why: str) -> None:
        if self._stream is not None:
            self._opener.failed(self._stream.connection.endpoint, why)
            await self._close_stream()
        log.info("watch of %s broke after revision %d: %s", self._prefix, self._revision, why)
        await self._backoff.wait()

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def _open_stream(self) -> _Stream:
        connection = await self._opener.open()
        metadata = self._opener.metadata
        try:
            self._check_revision(await self._newest_revision(connection, metadata))
        except BaseException as error:
            await connection.close()
            if isinstance(error, rpc.AioRpcError):
                raise self._failure(connection.endpoint, error, metadata) from error
            raise
        stream = _Stream(connection, connection.watch.Watch(metadata=metadata), self._settings)
        try:
            await stream.create(self._prefix, start=self._revision)
        except BaseException as error:
            await stream.close()
            if isinstance(error, _BrokenError):
                self._opener.failed(connection.endpoint, str(error))
            raise
        return stream

    def _failure(self, endpoint: str, error: Any, metadata: Metadata) -> Exception:
        """Return the exception for a stream that could not be opened: retryable or permanent."""
        if is_stale_token(error):
            self._opener.forget_token(endpoint, refused=metadata)
        elif is_transient(error):
            self._opener.failed(endpoint, reason(error))
        else:
            return translate(error)
        return _BrokenError(reason(error))

    async def _newest_revision(self, connection: Connection, metadata: Metadata) -> int:
        """Return the newest revision by a linearizable read, which also proves that the endpoint has a quorum."""
        response = await connection.kv.Range(
            rpc.RangeRequest(key=prefix_bounds(self._prefix)[0], keys_only=True),
            timeout=self._settings.connect_timeout,
            metadata=metadata,
        )
        return int(response.header.revision)

    def _check_revision(self, newest: int) -> None:
        if newest < self._revision:
            raise ClusterMismatchError(
                f"etcd is at revision {newest}, but {self._revision} has been seen: it was emptied or restored "
                "from a backup; check that its data is right, then restart"
            )


class _Stream:
    """One watch on one gRPC stream."""

    def __init__(self, connection: Connection, call: Any, settings: EtcdSettings) -> None:
        self.connection = connection
        self._call = call
        self._settings = settings
        self._reading: asyncio.Task[Any] | None = None
        self._peer_lost: asyncio.Task[None] = asyncio.ensure_future(connection.until_lost())

    async def create(self, prefix: str, *, start: int) -> None:
        """Create the watch and wait until the server confirms it."""
        key, end = prefix_bounds(prefix)
        create = rpc.WatchCreateRequest(key=key, range_end=end, start_revision=max(start, 1), progress_notify=True)
        await self._write(rpc.WatchRequest(create_request=create))
        response = await self._read(self._settings.stall_timeout)
        if response is None:
            raise _BrokenError(f"the server did not create the watch within {self._settings.stall_timeout:g} s")
        _check_canceled(response)

    async def next_batch(self, *, after: int) -> WatchBatch:
        """Return the changes after revision `after`, or a batch without events that advances the revision."""
        while True:
            response = await self._read_or_ask()
            _check_canceled(response)
            if response.events:
                events = decode_events(response.events, after=after)
                if events:
                    return WatchBatch(events[-1].mod_revision, tuple(events))
            elif self._is_progress(response) and response.header.revision > after:
                return WatchBatch(response.header.revision, ())

    async def close(self) -> None:
        """End the stream and its connection."""
        self._call.cancel()
        tasks = [task for task in (self._peer_lost, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connection.close()

    def _is_progress(self, response: Any) -> bool:
        asked_for = response.watch_id == _ALL_WATCHES
        return not response.created and (not asked_for or self.connection.version >= _TRUSTED_PROGRESS)

    async def _read_or_ask(self) -> Any:
        """Return the next response; if the server is silent, request its progress."""
        response = await self._read(self._settings.progress_interval)
        if response is None:
            await self._write(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))
            response = await self._read(self._settings.stall_timeout)
        if response is None:
            raise _BrokenError(f"no progress response within {self._settings.stall_timeout:g} s")
        return response

    async def _write(self, request: Any) -> None:
        try:
            async with asyncio.timeout(self._settings.stall_timeout):
                await self._call.write(request)
        except (rpc.AioRpcError, asyncio.InvalidStateError, TimeoutError) as error:
            raise _BrokenError(f"cannot send: {error!r}") from error

    async def _read(self, seconds: float) -> Any:
        """Return the next response, or None after a timeout; the read stays pending, as cancelling it ends the call."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        await asyncio.wait({self._reading, self._peer_lost}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not self._reading.done():
            # A server that shuts down announces it and then waits for its watches to end.
            if self._peer_lost.done():
                raise _BrokenError("the server is shutting down")
            return None
        reading, self._reading = self._reading, None
        if reading.cancelled():
            raise _BrokenError("the stream was closed")
        try:
            response = reading.result()
        except rpc.AioRpcError as error:
            raise _BrokenError(reason(error)) from error
        if response is grpc.aio.EOF:
            raise _BrokenError("the server ended the stream")
        return response


def _check_canceled(response: Any) -> None:
    if response.compact_revision:
        raise _CompactedError
    if response.canceled:
        raise _BrokenError(response.cancel_reason or "the server cancelled the watch")

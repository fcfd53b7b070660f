"""Shared test support: a proxy that breaks connections, and waiting without sleeping."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from aetcd import rpc

from evenkeel.errors import UnreachableError
from evenkeel.metastore.etcd_server import free_port
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.metastore.metastore_api import Delete, Event, Metastore, Put, Txn, TxnResult, WatchBatch

FAST_ELECTIONS = ("--heartbeat-interval=20", "--election-timeout=200")
TIMEOUT = 20.0
END = "zzz-end"


class Subject(NamedTuple):
    """A metastore under test, and its compaction, which the interface does not have."""

    store: Metastore
    compact: Callable[[int], Awaitable[None]]


def settings_for(*endpoints: str, **changes: Any) -> EtcdSettings:
    """Return settings with short timeouts, so that a test of a timeout takes tenths of a second."""
    quick = {"request_timeout": 5.0, "connect_timeout": 0.5, "progress_interval": 0.1, "stall_timeout": 0.3}
    return EtcdSettings(endpoints=endpoints, **(quick | changes))


def put(key: str, value: bytes = b"", **options: Any) -> Txn:
    return Txn(success=(Put(key, value, **options),))


def delete(key: str, **options: Any) -> Txn:
    return Txn(success=(Delete(key, **options),))


async def compact_etcd(endpoint: str, revision: int) -> None:
    async with rpc.insecure_channel(endpoint.removeprefix("http://")) as channel:
        await rpc.KVStub(channel).Compact(rpc.CompactionRequest(revision=revision, physical=True))


def of_key(key: str) -> Callable[[Event], bool]:
    """Return a predicate for events of this key."""
    return lambda event: event.key == key


async def events_until(watch: AsyncIterator[WatchBatch], done: Callable[[Event], bool]) -> list[Event]:
    """Return all events up to the first that is `done`; batches must be in order and never repeat."""
    events: list[Event] = []
    revision = 0
    async with asyncio.timeout(TIMEOUT):
        async for batch in watch:
            assert batch.revision > revision, "a batch must move the revision on"
            assert all(revision < event.mod_revision <= batch.revision for event in batch.events)
            revision = batch.revision
            events += batch.events
            if any(done(event) for event in batch.events):
                return events
    raise AssertionError("the watch ended by itself")


async def events_until_end(watch: AsyncIterator[WatchBatch], store: Metastore, prefix: str) -> list[Event]:
    """Return all remaining events, by writing one last key and waiting for its event."""
    await store.txn(put(prefix + END))
    events = await events_until(watch, lambda event: event.key == prefix + END)
    return [event for event in events if event.key != prefix + END]


def shown(events: list[Event]) -> list[tuple[str, bytes | None]]:
    """Format events as (last part of the key, value or None)."""
    return [(event.key.rpartition("/")[2], event.kv.value if event.kv else None) for event in events]


async def persistent_txn(store: Metastore, txn: Txn) -> TxnResult:
    """Repeat a repeatable transaction until it is answered."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            with contextlib.suppress(UnreachableError):
                return await store.txn(txn)


class Proxy:
    """A TCP proxy on loopback that can refuse, close, cut, stall and drop connections."""

    def __init__(self, target: str) -> None:
        self.redirect(target)
        self._port = free_port()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._answering = asyncio.Event()
        self._flowing.set()
        self._answering.set()
        self._slamming = False
        self.accepted = 0
        self.slammed = asyncio.Event()
        """Set once a connection was refused."""
        self.swallowed = asyncio.Event()
        """Set once a response was held back."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def accept(self) -> None:
        """Listen and forward everything."""
        self._flowing.set()
        self._answering.set()
        self._slamming = False
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)

    async def refuse(self) -> None:
        """Close all connections and accept no more."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self.cut()

    async def slam(self) -> None:
        """Close all connections, and new ones as soon as they are accepted."""
        self._slamming = True
        await self.cut()

    async def cut(self) -> None:
        """Close all connections; new ones are accepted."""
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def redirect(self, target: str) -> None:
        """Forward new connections to another address."""
        self._target_port = int(target.rpartition(":")[2])

    def stall(self) -> None:
        """Keep all connections open and forward nothing."""
        self._flowing.clear()

    def swallow_answers(self) -> None:
        """Forward requests and hold back responses."""
        self._answering.clear()

    async def __aenter__(self) -> Proxy:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._slamming:
            self.slammed.set()
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.accepted += 1
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, upstream_writer, answers=False))
                both.create_task(self._copy(upstream_reader, writer, answers=True))
        except* OSError:
            pass
        finally:
            upstream_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await reader.read(65536):
            if answers and not self._answering.is_set():
                self.swallowed.set()
                await self._answering.wait()
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

"""Stores on loopback, and a proxy between them that can cut, corrupt or delay traffic."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from evenkeel.runtime.clock import Clock, VirtualClock
from evenkeel_raft.core.raft_messages import InstallSnapshot, Message
from evenkeel_raft.net.files.snapshot_manifest import Manifest
from evenkeel_raft.net.peer_frames import Inquiry, Verdict
from evenkeel_raft.net.peer_tls import TlsFiles
from evenkeel_raft.net.peers import Peers
from evenkeel_raft.shared.identity import Address, Identity, LinkSettings

HOST = "127.0.0.1"
QUICK = LinkSettings(first_retry=0.001, last_retry=0.01)
_LONG_SECONDS = 60.0


def without_timeouts(settings: LinkSettings) -> LinkSettings:
    """Effectively disable timeouts: with the real clock, any peer on a busy machine is silent for seconds."""
    return settings._replace(
        hello_seconds=_LONG_SECONDS,
        connect_seconds=_LONG_SECONDS,
        silent_seconds=max(_LONG_SECONDS, settings.silent_seconds),
    )


async def turns(condition: Callable[[], bool], clock: VirtualClock | None = None, *, step: float = 0.01) -> None:
    """Run the event loop, and advance virtual time, until a condition holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)
            if clock is not None:
                clock.advance(step)


class Handler:
    """Records what arrives."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()
        self.batches: list[int] = []
        self.up: asyncio.Queue[str] = asyncio.Queue()
        self.down: asyncio.Queue[str] = asyncio.Queue()
        self.snapshots: asyncio.Queue[tuple[str, InstallSnapshot, Path, Manifest]] = asyncio.Queue()
        self.inquiries: asyncio.Queue[tuple[str, Inquiry]] = asyncio.Queue()
        self.verdicts: asyncio.Queue[tuple[str, Verdict]] = asyncio.Queue()
        self.unwanted = ""

    def received(self, store: str, messages: list[Message]) -> None:
        self.batches.append(len(messages))
        for message in messages:
            self.messages.put_nowait((store, message))

    def on_inquiry(self, store: str, inquiry: Inquiry) -> None:
        self.inquiries.put_nowait((store, inquiry))

    def on_verdict(self, store: str, verdict: Verdict) -> None:
        self.verdicts.put_nowait((store, verdict))

    def connected(self, store: str) -> None:
        self.up.put_nowait(store)

    def disconnected(self, store: str) -> None:
        self.down.put_nowait(store)

    def offered(self, store: str, message: InstallSnapshot, manifest: Manifest) -> str:
        return self.unwanted

    def stored(self, store: str, message: InstallSnapshot, directory: Path, manifest: Manifest) -> None:
        self.snapshots.put_nowait((store, message, directory, manifest))


class Store:
    """The peer connections of one store."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        cluster: str = "c",
        volume: str = "",
        settings: LinkSettings = QUICK,
        clock: Clock | None = None,
        tls: TlsFiles | None = None,
        rate: float | None = None,
        table_of: Callable[[int], str] = lambda group: "",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.me = Identity(cluster, name, volume or f"vol-{name}")
        self.handler = Handler()
        self.inbox = directory / name
        self.port = 0
        self.peers = Peers(
            self.me,
            handler=self.handler,
            inbox=self.inbox,
            settings=settings if clock is not None else without_timeouts(settings),
            clock=clock,
            rng=random.Random(name),
            tls=tls,
            bytes_per_second=rate,
            table_of=table_of,
            wall_clock=wall_clock,
        )

    async def start(self, port: int = 0) -> Store:
        self.port = await self.peers.start(HOST, port)
        return self

    @property
    def address(self) -> Address:
        return Address(HOST, self.port, self.me.volume)


def introduce(*stores: Store, **instead: int) -> None:
    """Register all stores with each other; `instead` gives proxy ports by store."""
    everybody = {store.name: Address(HOST, instead.get(store.name, store.port), store.me.volume) for store in stores}
    for store in stores:
        store.peers.set_peers(everybody)


class Raw:
    """A connection that sends exactly the given frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Raw:
        return cls(*await asyncio.open_connection(HOST, port))

    def say(self, *values: Any) -> None:
        for value in values:
            payload = msgspec.msgpack.encode(value)
            self.writer.write(struct.pack("<I", len(payload)) + payload)

    async def receive(self) -> Any:
        (length,) = struct.unpack("<I", await self.reader.readexactly(4))
        return msgspec.msgpack.decode(await self.reader.readexactly(length))

    async def receive_next(self) -> Any:
        """Return the next frame that is not `alive`."""
        while (received := await self.receive())[0] == "alive":
            pass
        return received

    async def ended(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Proxy:
    """Forwards bytes to a port; bytes towards the port can be cut off, flipped or delayed."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        self.passed = 0
        self.cut_at: list[int] = []
        """For each connection in turn: the byte after which it is cut."""
        self.flip_at: list[int] = []
        """For each connection in turn: the byte to change."""
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._listener = socket.create_server((HOST, 0))
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Proxy:
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return self

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _accept(self) -> None:
        here, _ = self._listener.accept()
        here.setblocking(False)
        self._spawn(self._pass(here, self.connections)).add_done_callback(lambda _: here.close())
        self.connections += 1

    async def _pass(self, here: socket.socket, number: int) -> None:
        cut = self.cut_at[number] if number < len(self.cut_at) else None
        flip = self.flip_at[number] if number < len(self.flip_at) else None
        with socket.socket() as there:
            there.setblocking(False)
            pipes: list[asyncio.Task[None]] = []
            try:
                await asyncio.get_running_loop().sock_connect(there, (HOST, self.target))
                pipes = [self._spawn(self._pipe(here, there, cut, flip)), self._spawn(self._pipe(there, here))]
                await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            except OSError:
                pass
            finally:
                for pipe in pipes:
                    pipe.cancel()
                await asyncio.gather(*pipes, return_exceptions=True)

    async def _pipe(
        self, source: socket.socket, target: socket.socket, cut: int | None = None, flip: int | None = None
    ) -> None:
        loop, at = asyncio.get_running_loop(), 0
        while data := await loop.sock_recv(source, 1 << 16):
            await self.flowing.wait()
            if flip is not None and at <= flip < at + len(data):
                data = data[: flip - at] + bytes([data[flip - at] ^ 0x40]) + data[flip - at + 1 :]
            if cut is not None and at + len(data) > cut:
                await loop.sock_sendall(target, data[: cut - at])
                return
            at += len(data)
            self.passed += len(data)
            await loop.sock_sendall(target, data)

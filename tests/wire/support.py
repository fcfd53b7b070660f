"""Fakes for both ends of the state-machine socket: handlers that record requests, and a raw connection."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire import socket_messages as m


class NoJitter:
    """An rng that never shortens a wait."""

    def uniform(self, a: float, b: float) -> float:
        return b


async def wait_until(condition: Callable[[], bool], clock: VirtualClock | None = None) -> None:
    """Run the event loop, and advance the clock, until a condition holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)
            if clock is not None:
                clock.advance(0.01)


class Sidecar:
    """A handler that records requests with their callbacks."""

    def __init__(self) -> None:
        self.hello: asyncio.Queue[m.Hello] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.proposals: asyncio.Queue[tuple[int, int, bytes, Callable[[m.ProposeOutcome], None]]] = asyncio.Queue()
        self.reads: asyncio.Queue[tuple[int, int, Callable[[m.ReadOutcome], None]]] = asyncio.Queue()
        self.doubts: asyncio.Queue[tuple[int, int, m.Doubt]] = asyncio.Queue()
        self.sizes: asyncio.Queue[tuple[int, int, int]] = asyncio.Queue()
        self.drains: asyncio.Queue[Callable[[m.Drained], None]] = asyncio.Queue()

    def connected(self, hello: m.Hello) -> None:
        self.gone.clear()
        self.hello.put_nowait(hello)

    def disconnected(self) -> None:
        self.gone.set()

    def propose(self, group: int, replica: int, data: bytes, answer: Callable[[m.ProposeOutcome], None]) -> None:
        self.proposals.put_nowait((group, replica, data, answer))

    def read_index(self, group: int, replica: int, answer: Callable[[m.ReadOutcome], None]) -> None:
        self.reads.put_nowait((group, replica, answer))

    def doubt(self, group: int, replica: int, doubt: m.Doubt) -> None:
        self.doubts.put_nowait((group, replica, doubt))

    def size(self, group: int, replica: int, size: int) -> None:
        self.sizes.put_nowait((group, replica, size))

    def drain(self, answer: Callable[[m.Drained], None]) -> None:
        self.drains.put_nowait(answer)


class FakeMachine:
    """A state machine that records requests with their callbacks."""

    def __init__(self) -> None:
        self.volume: asyncio.Queue[str] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.asked: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()

    def connected(self, volume: str) -> None:
        self.gone.clear()
        self.volume.put_nowait(volume)

    def disconnected(self) -> None:
        self.gone.set()

    def open(self, group: int, replica: int, request: m.Open, answer: Callable[[Any], None]) -> None:
        self.asked.put_nowait(("open", group, replica, answer))

    def apply(self, group: int, replica: int, request: m.Apply, answer: Callable[[Any], None]) -> None:
        self.asked.put_nowait(("apply", group, replica, request, answer))

    def snapshot(self, group: int, replica: int, directory: Path, answer: Callable[[Any], None]) -> None:
        self.asked.put_nowait(("snapshot", group, replica, directory, answer))

    def restore(self, group: int, replica: int, request: m.Restore, answer: Callable[[Any], None]) -> None:
        self.asked.put_nowait(("restore", group, replica, request, answer))

    def close(self, group: int, replica: int, answer: Callable[[Any], None]) -> None:
        self.asked.put_nowait(("close", group, replica, answer))

    def destroy(self, group: int, replica: int, answer: Callable[[Any], None]) -> None:
        self.asked.put_nowait(("destroy", group, replica, answer))

    def role(self, group: int, replica: int, role: m.Role) -> None:
        self.asked.put_nowait(("role", group, replica, role))


class Raw:
    """One end of a connection that sends exactly the messages that a test writes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, path: Path) -> Raw:
        return cls(*await asyncio.open_unix_connection(path))

    def send(self, *values: Any) -> None:
        for value in values:
            payload = msgspec.msgpack.encode(value)
            self.writer.write(struct.pack("<I", len(payload)) + payload)

    async def receive(self) -> Any:
        (length,) = struct.unpack("<I", await self.reader.readexactly(4))
        return msgspec.msgpack.decode(await self.reader.readexactly(length))

    async def read_to_end(self) -> bytes:
        """Wait until the other end closes; return the bytes before that."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self.writer.wait_closed()

"""The link between stores and the state machine socket, each end in its own process.

The references run on the same machine in the same run: an asyncio protocol that echoes bytes, and a file sent through
one socket and synced at the other end. Windows alternate, and medians are compared. Each file is sent twice and the
second time counts, because a virtual machine may have returned free memory to its host.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from bench._plain_copy import make_file, plain_copy
from bench.report import Row
from evenkeel.runtime.event_loop import run
from evenkeel.wire import socket_messages as wire
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel.wire.store_socket import StoreSocket
from evenkeel_raft.core.raft_messages import (
    AppendResponse,
    InstallSnapshot,
    Message,
    ReadRequest,
    ReadResponse,
    TimeoutNow,
)
from evenkeel_raft.core.raft_types import Conf, SnapshotMeta
from evenkeel_raft.net.files.snapshot_manifest import Manifest, make_manifest
from evenkeel_raft.net.peer_frames import Inquiry, Verdict
from evenkeel_raft.net.peers import Peers
from evenkeel_raft.shared.identity import Address, Identity

__all__ = ["net_rows"]

HOST = "127.0.0.1"
WINDOWS = 5
MESSAGES = 200_000
ROUND_TRIPS = 5_000
PROPOSALS = 50_000
FILE_BYTES = 256 << 20
_CATCH_UP = f"catch-up: {FILE_BYTES >> 20} MiB stored and verified, vs plain copy; target >= 0.5"
ACKNOWLEDGED = AppendResponse(5, 0, 2, 1, 3, 100, False, 0, 0, 99)
PING = ReadRequest(5, 0, 1, 2, 3, 1)
LAST = TimeoutNow(5, 0, 1, 2, 3)


def net_rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from run(_measure(Path(folder)))


async def _measure(folder: Path) -> list[Row]:
    figures: dict[str, list[float]] = {}
    async with _store(folder) as (peers, handler), _echo() as echo:
        source = folder / "file"
        await asyncio.to_thread(make_file, source, FILE_BYTES)
        manifest = await asyncio.to_thread(make_manifest, folder, [source.name])
        windows: dict[str, Callable[[int], Awaitable[float]]] = {
            "messages": lambda _: _windowed(peers, handler),
            "round trips": lambda _: _round_trips(peers, handler),
            "plain round trips": lambda _: _plain_round_trips(echo),
            "first snapshot": lambda number: _snapshot(peers, manifest, folder, 2 * number),
            "snapshot": lambda number: _snapshot(peers, manifest, folder, 2 * number + 1),
            "first plain copy": lambda _: asyncio.to_thread(plain_copy, source),
            "plain copy": lambda _: asyncio.to_thread(plain_copy, source),
            "proposals": lambda _: _proposals(folder),
        }
        for number in range(WINDOWS):
            for name, window in windows.items():
                figures.setdefault(name, []).append(await window(number))
    median = {name: statistics.median(values) for name, values in figures.items()}
    return [
        Row("raft", "peer link: small messages, one way", median["messages"], "messages/s"),
        _compare("peer link: one round trip at a time, vs plain asyncio", "round trips/s", median, "round trips"),
        _compare(_CATCH_UP, "MB/s", median, "snapshot", "plain copy"),
        Row("raft", "state machine socket: 64 concurrent proposals of 100 bytes", median["proposals"], "proposals/s"),
    ]


def _compare(case: str, unit: str, median: dict[str, float], name: str, reference: str = "") -> Row:
    other = median[reference or f"plain {name}"]
    return Row("raft", case, median[name], unit, other, median[name] / other)


# Messages


class _Handler:
    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.answered: asyncio.Queue[Message] = asyncio.Queue()

    def received(self, store: str, messages: list[Message]) -> None:
        for message in messages:
            self.answered.put_nowait(message)

    def on_inquiry(self, store: str, inquiry: Inquiry) -> None:
        pass

    def on_verdict(self, store: str, verdict: Verdict) -> None:
        pass

    def connected(self, store: str) -> None:
        self.up.set()

    def disconnected(self, store: str) -> None:
        pass

    def offered(self, store: str, message: InstallSnapshot, manifest: Manifest) -> str:
        return ""

    def stored(self, store: str, message: InstallSnapshot, directory: Path, manifest: Manifest) -> None:
        # The reference removes its copy too: pages left in the cache slow down the next writer.
        asyncio.get_running_loop().call_later(0.05, shutil.rmtree, directory)


class _Answering(_Handler):
    """The other store: it answers reads, and reports how many messages came before the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.peers: Peers | None = None
        self.count = 0

    def received(self, store: str, messages: list[Message]) -> None:
        assert self.peers is not None
        self.count += len(messages)
        for message in messages:
            if isinstance(message, ReadRequest):
                self.peers.send(store, ReadResponse(5, 0, 2, 1, 3, message.context, 1))
                self.count -= 1
            elif isinstance(message, TimeoutNow):
                self.peers.send(store, ReadResponse(5, 0, 2, 1, 3, self.count, 1))
                self.count = 0
        self.peers.flush()


@contextlib.asynccontextmanager
async def _store(folder: Path) -> AsyncIterator[tuple[Peers, _Handler]]:
    handler = _Handler()
    peers = Peers(Identity("bench", "store-1", "one"), handler=handler, inbox=folder / "one")
    port = await peers.start(HOST, 0)
    child, other = await asyncio.to_thread(_child, "store", str(folder / "two"), str(port))
    peers.set_peers({"store-2": Address(HOST, other, "two")})
    await handler.up.wait()
    try:
        yield peers, handler
    finally:
        await peers.close()
        child.kill()
        await asyncio.to_thread(child.wait)


async def _serve_store(inbox: str, port: str) -> None:
    handler = _Answering()
    handler.peers = Peers(Identity("bench", "store-2", "two"), handler=handler, inbox=Path(inbox))
    print(await handler.peers.start(HOST, 0), flush=True)
    handler.peers.set_peers({"store-1": Address(HOST, int(port), "one")})
    await asyncio.Event().wait()


async def _windowed(peers: Peers, handler: _Handler) -> float:
    began = time.perf_counter()
    for _ in range(MESSAGES // 1000):
        for _ in range(1000):
            peers.send("store-2", ACKNOWLEDGED)
        await asyncio.sleep(0)
    peers.send("store-2", LAST)
    last = await handler.answered.get()
    assert isinstance(last, ReadResponse)
    assert last.context == MESSAGES + 1, f"{MESSAGES + 1 - last.context} messages were dropped"
    return MESSAGES / (time.perf_counter() - began)


async def _round_trips(peers: Peers, handler: _Handler) -> float:
    began = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        peers.send("store-2", PING)
        peers.flush()
        await handler.answered.get()
    return ROUND_TRIPS / (time.perf_counter() - began)


class _Pong(asyncio.Protocol):
    """Echoes what it receives."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Ping(_Pong):
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.came: asyncio.Queue[bytes] = asyncio.Queue()

    def data_received(self, data: bytes) -> None:
        self.came.put_nowait(data)

    async def round_trip(self) -> None:
        self._transport.write(b"a message of about the same size")
        await self.came.get()


@contextlib.asynccontextmanager
async def _echo() -> AsyncIterator[_Ping]:
    child, port = await asyncio.to_thread(_child, "echo")
    transport, ping = await asyncio.get_running_loop().create_connection(_Ping, HOST, port)
    try:
        yield ping
    finally:
        transport.close()
        child.kill()
        await asyncio.to_thread(child.wait)


async def _serve_echo() -> None:
    server = await asyncio.get_running_loop().create_server(_Pong, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _plain_round_trips(ping: _Ping) -> float:
    began = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        await ping.round_trip()
    return ROUND_TRIPS / (time.perf_counter() - began)


# Files


async def _snapshot(peers: Peers, manifest: Manifest, folder: Path, number: int) -> float:
    message = InstallSnapshot(5, 0, 1, 2, 3, SnapshotMeta(10 + number, 3, Conf((1, 2))))
    began = time.perf_counter()
    await peers.send_snapshot("store-2", message=message, manifest=manifest, directory=folder)
    return FILE_BYTES / 1e6 / (time.perf_counter() - began)


# The state machine socket


class _Committing:
    """A sidecar that commits at once."""

    def __init__(self) -> None:
        self.index = 0

    def connected(self, hello: wire.Hello) -> None:
        pass

    def disconnected(self) -> None:
        pass

    def propose(self, group: int, replica: int, data: bytes, answer: Callable[[wire.ProposeOutcome], None]) -> None:
        self.index += 1
        answer(wire.Committed(self.index, 1))

    def read_index(self, group: int, replica: int, answer: Callable[[wire.ReadOutcome], None]) -> None:
        answer(wire.ReadAt(self.index))

    def doubt(self, group: int, replica: int, doubt: wire.Doubt) -> None:
        pass

    def size(self, group: int, replica: int, size: int) -> None:
        pass

    def drain(self, answer: Callable[[wire.Drained], None]) -> None:
        answer(wire.Drained())


class _Idle:
    """A state machine that expects no requests."""

    def __init__(self) -> None:
        self.up = asyncio.Event()

    def connected(self, volume: str) -> None:
        self.up.set()

    def disconnected(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was not expected")


async def _proposals(folder: Path) -> float:
    path = folder / "socket"
    child, _ = await asyncio.to_thread(_child, "sidecar", str(path))
    machine = _Idle()
    end = StoreSocket(path, volume="", state_machine=machine)
    running = asyncio.create_task(end.run())
    try:
        await machine.up.wait()
        began = time.perf_counter()
        data = bytes(100)
        for _ in range(PROPOSALS // 64):
            await asyncio.gather(*(end.propose(1, 1, data) for _ in range(64)))
        return PROPOSALS // 64 * 64 / (time.perf_counter() - began)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        child.kill()
        await asyncio.to_thread(child.wait)


async def _serve_sidecar(path: str) -> None:
    end = SidecarSocket(Path(path), volume="bench", handler=_Committing())
    await end.start()
    print(0, flush=True)
    await asyncio.Event().wait()


# Processes


def _child(role: str, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """Start the other end; return it and the port it printed."""
    command = [sys.executable, "-m", __name__, role, *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    port = int(child.stdout.readline())
    child.stdout.close()
    return child, port


def _main(role: str, *arguments: str) -> None:
    match role:
        case "store":
            run(_serve_store(*arguments))
        case "echo":
            run(_serve_echo())
        case "sidecar":
            run(_serve_sidecar(*arguments))


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""Each end of the state-machine socket with hand-written bytes, valid and invalid."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evenkeel.errors import DisconnectedError, HandshakeError
from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire import socket_messages as m
from evenkeel.wire.framing import Reason
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel.wire.store_socket import StoreSocket
from tests.wire.support import FakeMachine, NoJitter, Raw, Sidecar, wait_until

HELLO = [0, 0, 0, ["hello", 1, "vol-1", 1 << 20]]


def frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


GARBAGE = [
    (struct.pack("<I", (64 << 20) + 1), Reason.TOO_LONG),
    (frame(b"\xc1"), Reason.UNDECODABLE),
    (frame(b""), Reason.UNDECODABLE),
    (frame(msgspec.msgpack.encode([1, 1, 1, ["frobnicate"]])), Reason.UNKNOWN_KIND),
    (frame(msgspec.msgpack.encode([1, 1, 1, ["apply", 1, 1, []]])), Reason.UNKNOWN_KIND),
    (frame(msgspec.msgpack.encode([9, 1, 1, ["applied", 1]])), Reason.UNEXPECTED),
    (frame(msgspec.msgpack.encode(HELLO)), Reason.UNEXPECTED),
]


async def test_session_in_bytes(raw: Raw, listening: SidecarSocket, sidecar: Sidecar) -> None:
    """A store that knows only msgpack and the documentation works with the sidecar."""
    raw.send(HELLO)
    assert await raw.receive() == [0, 0, 0, ["hello", 1, "vol-1", 0, True, [1, 2], 1]]
    opened = listening.open(4, 9, table="orders.1", partition=2)
    number, group, replica, body = await raw.receive()
    assert (group, replica, body) == (4, 9, ["open", "orders.1", 2])
    raw.send([number, group, replica, ["opened", 4, "ok"]])
    assert await opened == m.Opened(4, "ok")
    raw.send([1, 4, 9, ["propose", b"hello"]])
    (await sidecar.proposals.get())[3](m.Committed(5, 2))
    assert await raw.receive() == [1, 4, 9, ["committed", 5, 2]]
    applied = listening.apply(4, 9, first=5, last=6, entries=[m.LoggedEntry(5, b"hello")])
    number, _, _, body = await raw.receive()
    assert body == ["apply", 5, 6, [[5, b"hello"]]]
    raw.send([number, 4, 9, ["applied", 6]])
    assert await applied == 6


@pytest.mark.parametrize(("junk", "reason"), GARBAGE, ids=[f"{reason}-{at}" for at, (_, reason) in enumerate(GARBAGE)])
async def test_garbage_closes_its_connection(
    raw: Raw, listening: SidecarSocket, sidecar: Sidecar, junk: bytes, reason: Reason
) -> None:
    """Invalid bytes are counted by reason and fail all requests; the next store can connect."""
    raw.send(HELLO)
    await raw.receive()
    future = listening.open(1, 1)
    raw.writer.write(junk)
    with pytest.raises(DisconnectedError):
        await future
    await raw.read_to_end()
    assert listening.drops == {reason: 1}
    again = await Raw.connect(listening.path)
    again.send(HELLO)
    assert (await again.receive())[3][0] == "hello"
    await again.close()


async def test_wrong_answer_closes_the_connection(raw: Raw, listening: SidecarSocket) -> None:
    """An answer of the wrong kind fails all requests of the connection."""
    raw.send(HELLO)
    futures: list[asyncio.Future[Any]] = []
    await raw.receive()
    futures += (listening.open(1, 1), listening.close_group(2, 1))
    number, *_ = await raw.receive()
    raw.send([number, 1, 1, ["done"]])
    for future in futures:
        with pytest.raises(DisconnectedError):
            await future
    assert listening.drops == {Reason.UNEXPECTED: 1}


@pytest.mark.parametrize(
    ("junk", "reason"),
    [
        (frame(b"\xc1"), Reason.UNDECODABLE),
        (frame(msgspec.msgpack.encode([1, 1, 1, ["propose", b"x"]])), Reason.UNEXPECTED),
        (struct.pack("<I", 2**32 - 1), Reason.TOO_LONG),
        (b"\x05", Reason.TRUNCATED),
    ],
    ids=str,
)
async def test_garbage_instead_of_a_hello(
    raw: Raw, listening: SidecarSocket, sidecar: Sidecar, junk: bytes, reason: Reason
) -> None:
    """A connection without a hello does not disturb the connected store."""
    store = await Raw.connect(listening.path)
    store.send(HELLO)
    await store.receive()
    raw.writer.write(junk)
    raw.writer.write_eof()
    await raw.read_to_end()
    assert listening.drops == {reason: 1}
    store.send([1, 1, 1, ["propose", b"x"]])
    (await sidecar.proposals.get())[3](m.Committed(1, 1))
    assert await store.receive() == [1, 1, 1, ["committed", 1, 1]]
    await store.close()


async def test_handshake_times_out(raw: Raw, listening: SidecarSocket, clock: VirtualClock) -> None:
    """A connection without a hello is dropped after five seconds."""
    raw.writer.write(frame(msgspec.msgpack.encode(HELLO))[:3])
    await wait_until(lambda: bool(listening._handshakes))
    clock.advance(4.9)
    assert not listening.drops
    clock.advance(0.2)
    await raw.read_to_end()
    assert listening.drops == {Reason.SILENT: 1}


async def test_end_inside_a_frame_is_truncated(raw: Raw, listening: SidecarSocket, sidecar: Sidecar) -> None:
    """A connection that ends inside a frame is counted; one that ends between frames is not."""
    raw.send(HELLO)
    await sidecar.hello.get()
    raw.writer.write(frame(msgspec.msgpack.encode([1, 1, 1, ["propose", b"x"]]))[:-1])
    await raw.close()
    await sidecar.gone.wait()
    assert listening.drops == {Reason.TRUNCATED: 1}
    assert sidecar.proposals.empty()
    again = await Raw.connect(listening.path)
    again.send(HELLO)
    await again.receive()
    await again.close()
    await sidecar.gone.wait()
    assert listening.drops == {Reason.TRUNCATED: 1}


async def test_listener_survives_random_bytes(listening: SidecarSocket, sidecar: Sidecar) -> None:
    """200 connections send random bytes, with or without a hello: each is dropped, and the listener goes on."""
    rng = random.Random(7)
    for number in range(200):
        peer = await Raw.connect(listening.path)
        if number % 2:
            peer.send(HELLO)
            await peer.receive()
        length = rng.randrange(1, 200)
        noise = rng.randbytes(length)
        peer.writer.write(noise if number % 3 else frame(noise))
        peer.writer.write_eof()
        await peer.read_to_end()
        await peer.close()
    assert sum(listening.drops.values()) == 200
    assert set(listening.drops) <= set(Reason)
    assert sidecar.proposals.empty()


async def serve_once(path: Path, *messages: Any) -> asyncio.Server:
    """Run a sidecar that sends fixed messages to every store, and closes when the store does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Raw(reader, writer)
        await peer.receive()
        for value in messages:
            if isinstance(value, bytes):
                writer.write(value)
            else:
                peer.send(value)
        await peer.read_to_end()
        await peer.close()

    return await asyncio.start_unix_server(serve, path)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        ([0, 0, 0, ["hello", 9, "vol-1"]], "the store speaks version 1 .* and the sidecar version 9"),
        ([0, 0, 0, ["hello", 9]], "the sidecar version 9"),
        ([0, 0, 0, ["refused", "whatever", "go away"]], "go away"),
    ],
)
async def test_refusal_ends_a_store(tmp_path: Path, machine: FakeMachine, message: Any, match: str) -> None:
    """A sidecar of another version, or one that refuses for good, ends `run` with its reason."""
    server = await serve_once(tmp_path / "sm.sock", message)
    with pytest.raises(HandshakeError, match=match):
        await StoreSocket(tmp_path / "sm.sock", volume="vol-1", state_machine=machine).run()
    server.close()
    assert machine.volume.empty()


@pytest.mark.parametrize(
    ("junk", "reason"),
    [
        (struct.pack("<I", (64 << 20) + 1), Reason.TOO_LONG),
        (frame(b"\xc1"), Reason.UNDECODABLE),
        (frame(msgspec.msgpack.encode([1, 1, 1, ["propose", b"x"]])), Reason.UNKNOWN_KIND),
        (frame(msgspec.msgpack.encode([9, 1, 1, ["committed", 1, 1]])), Reason.UNEXPECTED),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_garbage_from_a_sidecar(
    tmp_path: Path, machine: FakeMachine, clock: VirtualClock, junk: bytes, reason: Reason
) -> None:
    """A store drops a sidecar that sends invalid bytes, counts it, and reconnects."""
    server = await serve_once(tmp_path / "sm.sock", [0, 0, 0, ["hello", 1, "vol-1"]], junk)
    store = StoreSocket(tmp_path / "sm.sock", volume="vol-1", state_machine=machine, clock=clock, rng=NoJitter())
    task = asyncio.create_task(store.run())
    for _ in range(2):
        await machine.volume.get()
        await machine.gone.wait()
        await asyncio.sleep(0)
        while machine.volume.empty() and store.drops[reason] < 2:
            clock.advance(0.01)
            await asyncio.sleep(0)
    assert store.drops == {reason: 2}
    task.cancel()
    server.close()


async def test_sidecar_bounds_proposals_itself(raw: Raw, listening: SidecarSocket, sidecar: Sidecar) -> None:
    """A store that does not limit its proposals gets `TooLarge` and `Busy`, and stays connected."""
    raw.send(HELLO)
    await raw.receive()
    raw.send([1, 1, 1, ["propose", bytes((32 << 20) + 1)]])
    assert await raw.receive() == [1, 1, 1, ["too_large", 32 << 20]]
    raw.send(*([number, 1, 1, ["propose", bytes(24 << 20)]] for number in (2, 3, 4)))
    assert await raw.receive() == [4, 1, 1, ["busy"]]
    assert sidecar.proposals.qsize() == 2

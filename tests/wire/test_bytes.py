"""Each end against hand-written bytes: what a state machine in another language sends, and what nobody should."""

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
from tests.wire.support import Machine, NoJitter, Raw, Sidecar, turns

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
    """A store that only knows msgpack and the documentation gets along."""
    raw.say(HELLO)
    assert await raw.hear() == [0, 0, 0, ["hello", 1, "vol-1", 0, True, [1, 2], 1]]
    opened = listening.open(4, 9, table="orders.1", partition=2)
    number, group, replica, body = await raw.hear()
    assert (group, replica, body) == (4, 9, ["open", "orders.1", 2])
    raw.say([number, group, replica, ["opened", 4, "ok"]])
    assert await opened == m.Opened(4, "ok")
    raw.say([1, 4, 9, ["propose", b"hello"]])
    (await sidecar.proposals.get())[3](m.Committed(5, 2))
    assert await raw.hear() == [1, 4, 9, ["committed", 5, 2]]
    applied = listening.apply(4, 9, first=5, last=6, entries=[m.LoggedEntry(5, b"hello")])
    number, _, _, body = await raw.hear()
    assert body == ["apply", 5, 6, [[5, b"hello"]]]
    raw.say([number, 4, 9, ["applied", 6]])
    assert await applied == 6


@pytest.mark.parametrize(("junk", "reason"), GARBAGE, ids=[f"{reason}-{at}" for at, (_, reason) in enumerate(GARBAGE)])
async def test_garbage_costs_its_connection(
    raw: Raw, listening: SidecarSocket, sidecar: Sidecar, junk: bytes, reason: Reason
) -> None:
    """Each kind of nonsense is counted by name, fails what was asked, and the next store is welcome."""
    raw.say(HELLO)
    await raw.hear()
    future = listening.open(1, 1)
    raw.writer.write(junk)
    with pytest.raises(DisconnectedError):
        await future
    await raw.ended()
    assert listening.drops == {reason: 1}
    again = await Raw.connect(listening.path)
    again.say(HELLO)
    assert (await again.hear())[3][0] == "hello"
    await again.close()


async def test_wrong_answer_costs_the_connection(raw: Raw, listening: SidecarSocket) -> None:
    """An answer of the wrong kind fails its request and all others."""
    raw.say(HELLO)
    futures: list[asyncio.Future[Any]] = []
    await raw.hear()
    futures += (listening.open(1, 1), listening.close_group(2, 1))
    number, *_ = await raw.hear()
    raw.say([number, 1, 1, ["done"]])
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
    """Whoever does not say hello does not disturb the store that did."""
    store = await Raw.connect(listening.path)
    store.say(HELLO)
    await store.hear()
    raw.writer.write(junk)
    raw.writer.write_eof()
    await raw.ended()
    assert listening.drops == {reason: 1}
    store.say([1, 1, 1, ["propose", b"x"]])
    (await sidecar.proposals.get())[3](m.Committed(1, 1))
    assert await store.hear() == [1, 1, 1, ["committed", 1, 1]]
    await store.close()


async def test_no_hello_is_not_awaited_for_ever(raw: Raw, listening: SidecarSocket, clock: VirtualClock) -> None:
    """A connection that says nothing is dropped after five seconds."""
    raw.writer.write(frame(msgspec.msgpack.encode(HELLO))[:3])
    await turns(lambda: bool(listening._greeting))
    clock.advance(4.9)
    assert not listening.drops
    clock.advance(0.2)
    await raw.ended()
    assert listening.drops == {Reason.SILENT: 1}


async def test_end_inside_a_frame_is_truncated(raw: Raw, listening: SidecarSocket, sidecar: Sidecar) -> None:
    """A store that dies in the middle of a frame is counted, one that ends between frames is not."""
    raw.say(HELLO)
    await sidecar.hello.get()
    raw.writer.write(frame(msgspec.msgpack.encode([1, 1, 1, ["propose", b"x"]]))[:-1])
    await raw.close()
    await sidecar.gone.wait()
    assert listening.drops == {Reason.TRUNCATED: 1}
    assert sidecar.proposals.empty()
    again = await Raw.connect(listening.path)
    again.say(HELLO)
    await again.hear()
    await again.close()
    await sidecar.gone.wait()
    assert listening.drops == {Reason.TRUNCATED: 1}


async def test_random_bytes_never_harm_the_listener(listening: SidecarSocket, sidecar: Sidecar) -> None:
    """Two hundred connections of noise, before or after a good hello: each is dropped, and the listener lives on."""
    rng = random.Random(7)
    for number in range(200):
        peer = await Raw.connect(listening.path)
        if number % 2:
            peer.say(HELLO)
            await peer.hear()
        length = rng.randrange(1, 200)
        noise = rng.randbytes(length)
        peer.writer.write(noise if number % 3 else frame(noise))
        peer.writer.write_eof()
        await peer.ended()
        await peer.close()
    assert sum(listening.drops.values()) == 200
    assert set(listening.drops) <= set(Reason)
    assert sidecar.proposals.empty()


async def serve_once(path: Path, *said: Any) -> asyncio.Server:
    """A sidecar that says something fixed to every store, and hangs up when the store does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Raw(reader, writer)
        await peer.hear()
        for value in said:
            if isinstance(value, bytes):
                writer.write(value)
            else:
                peer.say(value)
        await peer.ended()
        await peer.close()

    return await asyncio.start_unix_server(serve, path)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ([0, 0, 0, ["hello", 9, "vol-1"]], "the store speaks version 1 .* and the sidecar version 9"),
        ([0, 0, 0, ["hello", 9]], "the sidecar version 9"),
        ([0, 0, 0, ["refused", "whatever", "go away"]], "go away"),
    ],
)
async def test_refusal_ends_a_store(tmp_path: Path, machine: Machine, said: Any, match: str) -> None:
    """A sidecar of another version, or one that refuses for good, ends the attempts with its reason."""
    server = await serve_once(tmp_path / "sm.sock", said)
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
    tmp_path: Path, machine: Machine, clock: VirtualClock, junk: bytes, reason: Reason
) -> None:
    """A store drops a sidecar that talks nonsense, counts it, and connects again."""
    server = await serve_once(tmp_path / "sm.sock", [0, 0, 0, ["hello", 1, "vol-1"]], junk)
    end = StoreSocket(tmp_path / "sm.sock", volume="vol-1", state_machine=machine, clock=clock, rng=NoJitter())
    task = asyncio.create_task(end.run())
    for _ in range(2):
        await machine.volume.get()
        await machine.gone.wait()
        await asyncio.sleep(0)
        while machine.volume.empty() and end.drops[reason] < 2:
            clock.advance(0.01)
            await asyncio.sleep(0)
    assert end.drops == {reason: 2}
    task.cancel()
    server.close()


async def test_sidecar_bounds_proposals_itself(raw: Raw, listening: SidecarSocket, sidecar: Sidecar) -> None:
    """A store that does not count its own proposals is told TooLarge and Busy, and keeps its connection."""
    raw.say(HELLO)
    await raw.hear()
    raw.say([1, 1, 1, ["propose", bytes((32 << 20) + 1)]])
    assert await raw.hear() == [1, 1, 1, ["too_large", 32 << 20]]
    raw.say(*([number, 1, 1, ["propose", bytes(24 << 20)]] for number in (2, 3, 4)))
    assert await raw.hear() == [4, 1, 1, ["busy"]]
    assert sidecar.proposals.qsize() == 2

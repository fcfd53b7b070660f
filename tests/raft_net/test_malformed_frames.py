"""Malformed input from unidentified clients and faulty peers closes only their connection and is counted."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.errors import FrameError
from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire.framing import Reason
from evenkeel_raft.core import raft_messages as raft
from evenkeel_raft.net.peer_frames import PEER_CODEC, VERSION, Batch
from evenkeel_raft.shared.identity import Address
from tests.raft_net.support import HOST, Raw, Store, introduce, turns

NewStore = Callable[..., Awaitable[Store]]
HELLO = ["hello", VERSION, "c", "store-0", "vol-0", "store-2", "raft"]
FILES = [*HELLO[:6], "files"]
MESSAGE = raft.ReadRequest(1, 0, 1, 2, 3, 4)


def framed(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def packed(value: Any) -> bytes:
    return framed(msgspec.msgpack.encode(value))


@pytest.fixture
async def friends(new_store: NewStore) -> AsyncIterator[tuple[Store, Store]]:
    """Two connected stores; the second also knows store-0, for which the tests speak."""
    one, two = await new_store("store-1"), await new_store("store-2")
    introduce(one, two)
    two.peers.set_peers({"store-1": one.address, "store-2": two.address, "store-0": Address(HOST, 1, "vol-0")})
    await one.handler.up.get()
    await two.handler.up.get()
    yield one, two
    # The malformed input must not have affected these two.
    one.peers.send("store-2", MESSAGE)
    assert await two.handler.messages.get() == ("store-1", MESSAGE)
    assert not one.peers.drops


BEFORE = [
    (framed(b"\xc1"), Reason.UNDECODABLE),
    (packed(["batch", []]), Reason.UNEXPECTED),
    (packed(["frobnicate"]), Reason.UNKNOWN_KIND),
    (packed(["hello", "one"]), Reason.UNDECODABLE),
    (struct.pack("<I", 4097), Reason.TOO_LONG),
    (b"\x03\x00", Reason.TRUNCATED),
    (b"GET / HTTP/1.1\r\n\r\n", Reason.TOO_LONG),
]
AFTER = [
    (HELLO, framed(b""), Reason.UNDECODABLE),
    (HELLO, packed(HELLO), Reason.UNEXPECTED),
    (HELLO, packed(["chunk", 0, 0, b""]), Reason.UNEXPECTED),
    (HELLO, packed(["batch", [[99, 1, 0, 1, 2, 3]]]), Reason.UNDECODABLE),
    (HELLO, packed(["batch", [[7, 1, 0, 1, 2]]]), Reason.UNDECODABLE),
    (HELLO, packed(["whatever"]), Reason.UNKNOWN_KIND),
    (HELLO, struct.pack("<I", (64 << 20) + 1), Reason.TOO_LONG),
    (HELLO, packed(["batch", []])[:-1], Reason.TRUNCATED),
    (FILES, packed(["chunk", 0, 0, b""]), Reason.UNEXPECTED),
    (FILES, packed(["batch", []]), Reason.UNEXPECTED),
    (FILES, packed(["offer", [8, 1, 0, 1, 2, 3, [1, 1, [[], [], [], [], 0, False, {}]]], [7, []]]), Reason.UNDECODABLE),
]


@pytest.mark.parametrize(("junk", "reason"), BEFORE, ids=[f"{place}-{case[1]}" for place, case in enumerate(BEFORE)])
async def test_before_the_hello(friends: tuple[Store, Store], junk: bytes, reason: Reason) -> None:
    """A client that sends malformed data before its hello is disconnected."""
    raw = await Raw.connect(friends[1].port)
    raw.writer.write(junk)
    raw.writer.write_eof()
    await raw.ended()
    await raw.close()
    assert friends[1].peers.drops == {reason: 1}


@pytest.mark.parametrize(
    ("hello", "junk", "reason"), AFTER, ids=[f"{place}-{case[2]}" for place, case in enumerate(AFTER)]
)
async def test_after_the_hello(friends: tuple[Store, Store], hello: list[Any], junk: bytes, reason: Reason) -> None:
    """A known peer that sends malformed data is disconnected and may reconnect."""
    two = friends[1]
    for times in (1, 2):
        raw = await Raw.connect(two.port)
        raw.say(hello)
        assert (await raw.receive())[0] == "hello"
        raw.writer.write(junk)
        raw.writer.write_eof()
        await raw.ended()
        await raw.close()
        await turns(lambda times=times: two.peers.drops[reason] == times)  # type: ignore[misc]
    assert two.peers.drops == {reason: 2}


async def test_random_bytes(friends: tuple[Store, Store]) -> None:
    """Connections with random bytes, before or after a valid hello of either purpose, are all dropped."""
    rng = random.Random(3)
    two = friends[1]
    for number in range(120):
        raw = await Raw.connect(two.port)
        if number % 3:
            raw.say(HELLO if number % 3 == 1 else FILES)
            await raw.receive()
        noise = rng.randbytes(rng.randrange(1, 300))
        raw.writer.write(noise if number % 2 else framed(noise))
        raw.writer.write_eof()
        await raw.ended()
        await raw.close()
    await turns(lambda: sum(two.peers.drops.values()) == 120)
    assert set(two.peers.drops) <= set(Reason)


async def test_connection_without_a_hello_times_out(new_store: NewStore) -> None:
    """A connection without a hello is closed after three seconds, at either end."""
    clock = VirtualClock()
    one, two = await new_store("store-1", clock=clock), await new_store("store-2", clock=clock)
    raw = await Raw.connect(two.port)
    await turns(lambda: len(two.peers._endpoint._unidentified) == 1)
    clock.advance(2.9)
    assert not two.peers.drops
    clock.advance(0.2)
    await raw.ended()
    await raw.close()
    assert two.peers.drops == {Reason.SILENT: 1}

    with socket.create_server((HOST, 0)) as mute:
        one.peers.set_peers({"store-2": Address(HOST, mute.getsockname()[1], "vol-2")})
        await turns(lambda: one.peers.drops[Reason.SILENT] == 1, clock)
        await one.peers.close()


async def test_connections_without_a_hello_are_limited(new_store: NewStore) -> None:
    """Beyond 256 connections without a hello, new ones are rejected; peers can connect afterwards."""
    two = await new_store("store-2")
    connections = [await Raw.connect(two.port) for _ in range(260)]
    await turns(lambda: two.peers.drops[Reason.OCCUPIED] == 4)
    for raw in connections:
        await raw.close()
    await turns(lambda: not two.peers._endpoint._unidentified)
    one = await new_store("store-1")
    introduce(one, two)
    assert await one.handler.up.get() == "store-2"


@settings(derandomize=True, deadline=None)
@given(st.integers(min_value=0), st.integers(min_value=0, max_value=255))
def test_damaged_batch_is_refused_or_read(place: int, byte: int) -> None:
    """A batch with one changed byte decodes to another batch or raises `FrameError`, nothing else."""
    payload = bytearray(PEER_CODEC.encode(Batch([MESSAGE, raft.TimeoutNow(1 << 40, 2, 3, 4, 5)])))
    payload[place % len(payload)] = byte
    try:
        PEER_CODEC.decode(bytes(payload))
    except FrameError as refused:
        reason = refused.reason
    else:
        return
    assert reason in (Reason.UNDECODABLE, Reason.UNKNOWN_KIND)

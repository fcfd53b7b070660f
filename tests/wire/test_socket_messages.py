"""The messages of the state-machine socket, byte by byte, as implementations in other languages see them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.errors import FrameError
from evenkeel.versions import VersionRange
from evenkeel.wire import socket_messages as m
from evenkeel.wire.frame_codec import Codec
from evenkeel.wire.framing import Reason

SIDECAR: list[tuple[m.SidecarMessage, list[Any]]] = [
    (m.Hello(1, "vol-1", 0, True, VersionRange(1, 2), 2), ["hello", 1, "vol-1", 0, True, [1, 2], 2]),
    (m.Refused("version", "why"), ["refused", "version", "why"]),
    (m.Open("orders.1", 4), ["open", "orders.1", 4]),
    (m.Apply(5, 7, [m.LoggedEntry(6, b"x")]), ["apply", 5, 7, [[6, b"x"]]]),
    (m.Snapshot("/shared/s"), ["snapshot", "/shared/s"]),
    (m.Restore("/shared/s", 9), ["restore", "/shared/s", 9]),
    (m.Close(), ["close"]),
    (m.Destroy(), ["destroy"]),
    (m.Role(False, 3, "store-2"), ["role", False, 3, "store-2"]),
    (m.Version(2), ["version", 2]),
    (m.Committed(6, 2), ["committed", 6, 2]),
    (m.NotLeader("store-2"), ["not_leader", "store-2"]),
    (m.Unknown(), ["unknown"]),
    (m.Busy(), ["busy"]),
    (m.TooLarge(), ["too_large", 32 << 20]),
    (m.ReadAt(6), ["read_at", 6]),
    (m.Unavailable(), ["unavailable"]),
    (m.Drained(1), ["drained", 1]),
]
STORE: list[tuple[m.StoreMessage, list[Any]]] = [
    (m.Hello(1, "", 1 << 20), ["hello", 1, "", 1 << 20, False, [1, 1], 1]),
    (m.Opened(4, "ok"), ["opened", 4, "ok", ""]),
    (m.Applied(7), ["applied", 7]),
    (m.SnapshotTaken(7, ["a", "b"]), ["snapshot_taken", 7, ["a", "b"]]),
    (m.Done(), ["done"]),
    (m.Failed("disk full"), ["failed", "disk full"]),
    (m.Propose(b"x"), ["propose", b"x"]),
    (m.ReadIndex(), ["read_index"]),
    (m.Doubt("it differs", True), ["doubt", "it differs", True]),
    (m.Size(5000), ["size", 5000]),
    (m.Drain(), ["drain"]),
]


@pytest.mark.parametrize(("body", "array"), SIDECAR, ids=lambda value: getattr(value, "__class__", type).__name__)
def test_sidecar_messages(body: m.SidecarMessage, array: list[Any]) -> None:
    """A sidecar's message is the documented array, and a store reads it back."""
    written = m.SIDECAR_CODEC.encode(m.FromSidecar(1, 2, 3, body))
    assert msgspec.msgpack.decode(written) == [1, 2, 3, array]
    assert m.STORE_CODEC.decode(written) == m.FromSidecar(1, 2, 3, body)


@pytest.mark.parametrize(("body", "array"), STORE, ids=lambda value: getattr(value, "__class__", type).__name__)
def test_store_messages(body: m.StoreMessage, array: list[Any]) -> None:
    """A store's message is the documented array, and a sidecar reads it back."""
    written = m.STORE_CODEC.encode(m.FromStore(1, 2, 3, body))
    assert msgspec.msgpack.decode(written) == [1, 2, 3, array]
    assert m.SIDECAR_CODEC.decode(written) == m.FromStore(1, 2, 3, body)


def test_tables_are_complete() -> None:
    """The tables above have every message."""
    assert {type(body) for body, _ in SIDECAR} == set(m.SidecarMessage.__args__)
    assert {type(body) for body, _ in STORE} == set(m.StoreMessage.__args__)


def test_arrays_may_grow() -> None:
    """A hello with more fields is accepted, and one with fewer fields uses the defaults."""
    newer = msgspec.msgpack.encode([0, 0, 0, ["hello", 2, "v", 7, False, [1, 1], 1, {"and": "more"}]])
    older = msgspec.msgpack.encode([0, 0, 0, ["hello", 0]])
    assert m.SIDECAR_CODEC.decode(newer).body == m.Hello(2, "v", 7)
    assert m.SIDECAR_CODEC.decode(older).body == m.Hello(0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1, 2, 3, ["frobnicate", 1]], Reason.UNKNOWN_KIND),
        ([1, 2, 3, ["open"]], Reason.UNKNOWN_KIND),
        ([1, 2, 3, [None]], Reason.UNKNOWN_KIND),
        ([1, 2, 3, ["propose", 7]], Reason.UNDECODABLE),
        ([1, 2, 3, ["opened", 1, "fine"]], Reason.UNDECODABLE),
        ([1, 2, 3, []], Reason.UNDECODABLE),
        ([1, 2, 3, [["propose"], b""]], Reason.UNDECODABLE),
        ([1, "2", 3, ["propose", b""]], Reason.UNDECODABLE),
        ({"kind": "propose"}, Reason.UNDECODABLE),
        (None, Reason.UNDECODABLE),
    ],
)
def test_invalid_messages_have_a_reason(value: Any, reason: Reason) -> None:
    """An unexpected kind and a known kind with invalid fields have different reasons."""
    with pytest.raises(FrameError) as refused:
        m.SIDECAR_CODEC.decode(msgspec.msgpack.encode(value))
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x94\x01\x02\x03\x92\xa7propose\xc6\xff\xff\xff\xff",
        msgspec.msgpack.encode([1, 2, 3, ["propose", b"x"]]) + b"\x00",
        b"\x95" + msgspec.msgpack.encode([1, 2, 3, ["propose", b"x"]])[1:] + b"\x91" * 100_000,
    ],
    ids=["empty", "deep", "long array", "long bytes", "trailing", "deep at the end"],
)
def test_hostile_payload_is_rejected(payload: bytes) -> None:
    """Deep nesting and lengths of gigabytes are rejected as undecodable."""
    with pytest.raises(FrameError) as refused:
        m.SIDECAR_CODEC.decode(payload)
    assert refused.value.reason == Reason.UNDECODABLE


def assert_rejected_or_decoded(codec: Codec[Any, Any], payload: bytes) -> None:
    try:
        codec.decode(payload)
    except FrameError as refused:
        reason = refused.reason
    else:
        return
    assert reason in (Reason.UNDECODABLE, Reason.UNKNOWN_KIND)


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_rejected_or_decoded(payload: bytes) -> None:
    """Arbitrary bytes are a message or a `FrameError`, never another exception."""
    for codec in (m.SIDECAR_CODEC, m.STORE_CODEC):
        assert_rejected_or_decoded(codec, payload)


@settings(derandomize=True, deadline=None)
@given(st.sampled_from(STORE), st.integers(min_value=0), st.integers(min_value=0, max_value=255))
def test_damaged_message_is_rejected_or_decoded(
    message: tuple[m.StoreMessage, list[Any]], place: int, byte: int
) -> None:
    """A message with one changed byte is decoded as another message or rejected with `FrameError`."""
    payload = bytearray(m.STORE_CODEC.encode(m.FromStore(300, 2**40, 7, message[0])))
    payload[place % len(payload)] = byte
    assert_rejected_or_decoded(m.SIDECAR_CODEC, bytes(payload))


def test_too_long_message_is_not_sent() -> None:
    """A message that exceeds the limit is rejected by the sender."""
    with pytest.raises(FrameError) as refused:
        m.SIDECAR_CODEC.encode(m.FromSidecar(1, 2, 3, m.Apply(1, 1, [m.LoggedEntry(1, bytes(65 << 20))])))
    assert refused.value.reason == Reason.TOO_LONG

"""Payloads in pieces equal payloads in one piece, without copies of large values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.errors import FrameError
from evenkeel.wire.framing import MAX_FRAME_BYTES
from evenkeel.wire.payload_pieces import LARGE_BYTES
from evenkeel.wire.socket_messages import (
    SIDECAR_CODEC,
    STORE_CODEC,
    Apply,
    FromSidecar,
    FromStore,
    LoggedEntry,
    Propose,
    apply_payload,
    propose_payload,
)

sizes = st.one_of(st.integers(0, 40), st.sampled_from([LARGE_BYTES - 1, LARGE_BYTES, (1 << 16) - 1, 1 << 16, 100_000]))


@settings(derandomize=True, deadline=None)
@given(st.lists(sizes, max_size=20), st.integers(0, 1 << 62))
def test_applies_in_pieces_are_the_same_bytes(lengths: list[int], number: int) -> None:
    """An `Apply` in pieces has the same bytes as one that is encoded at once, for entries of any size."""
    entries = [LoggedEntry(number + place, bytes([place]) * size) for place, size in enumerate(lengths)]
    apply = Apply(number, number + len(lengths), entries)
    payload = b"".join(apply_payload(number, 7, 3, apply))
    assert payload == SIDECAR_CODEC.encode(FromSidecar(number, 7, 3, apply))
    assert STORE_CODEC.decode(payload).body == apply


@settings(derandomize=True, deadline=None)
@given(sizes, st.integers(0, 1 << 62))
def test_proposals_in_pieces_are_the_same_bytes(size: int, number: int) -> None:
    """A `Propose` in pieces has the same bytes as one that is encoded at once."""
    data = bytes(size)
    payload = b"".join(propose_payload(number, 7, 3, data))
    assert payload == STORE_CODEC.encode(FromStore(number, 7, 3, Propose(data)))


def test_many_entries_are_a_long_list() -> None:
    """A list of more than 65,535 values has another msgpack header."""
    entries = [LoggedEntry(0, bytes(LARGE_BYTES)), *(LoggedEntry(place, b"") for place in range(1, 70_000))]
    apply = Apply(0, 70_000, entries)
    assert b"".join(apply_payload(1, 7, 3, apply)) == SIDECAR_CODEC.encode(FromSidecar(1, 7, 3, apply))


def test_large_data_is_not_copied() -> None:
    """The pieces contain the very object that was passed in."""
    data = bytes(LARGE_BYTES)
    assert any(piece is data for piece in propose_payload(1, 7, 3, data))
    assert any(piece is data for piece in apply_payload(1, 7, 3, Apply(1, 1, [LoggedEntry(1, data)])))


def test_too_much_for_a_frame_is_rejected() -> None:
    """The frame limit also applies to payloads in pieces."""
    entries = [LoggedEntry(place, bytes(MAX_FRAME_BYTES // 2)) for place in range(2)]
    with pytest.raises(FrameError, match="exceeds the frame limit"):
        apply_payload(1, 7, 3, Apply(0, 1, entries))

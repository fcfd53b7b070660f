"""Frames are found wherever the stream is cut, and what is no frame is named."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.errors import FrameError
from evenkeel.wire.frames import MAX_FRAME_BYTES, FrameReader, Reason

payloads = st.lists(st.binary(max_size=300), max_size=12)


def framed(*contents: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(content)) + content for content in contents)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(places)]


@settings(derandomize=True, deadline=None)
@given(payloads, st.lists(st.integers(min_value=0, max_value=5000), max_size=30))
def test_frames_survive_any_cut(contents: list[bytes], cuts: list[int]) -> None:
    """However a stream is delivered, the frames that come out are those that went in."""
    reader = FrameReader()
    found = [bytes(frame) for piece in pieces(framed(*contents), cuts) for frame in reader.feed(piece)]
    assert found == contents
    assert not reader.inside


def test_large_frame_arrives_byte_by_byte_and_with_its_successor() -> None:
    """A frame of many pieces is kept together, and what follows in the last piece is not lost."""
    contents = [b"a" * 100_000, b"", b"b"]
    stream = framed(*contents)
    reader = FrameReader()
    found = [bytes(frame) for at in range(0, len(stream), 999) for frame in reader.feed(stream[at : at + 999])]
    assert found == contents


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_too_long_frame_is_refused_by_its_header(length: int) -> None:
    """Four bytes are enough to know that a frame is too long; nobody waits for the rest."""
    with pytest.raises(FrameError) as refused:
        list(FrameReader().feed(struct.pack("<I", length)))
    assert refused.value.reason == Reason.TOO_LONG
    assert str(length) in str(refused.value)


def test_longest_frame_is_awaited() -> None:
    """A frame of exactly the limit is fine, and a promise of 64 MiB allocates nothing."""
    reader = FrameReader()
    assert list(reader.feed(struct.pack("<I", MAX_FRAME_BYTES) + b"x")) == []
    assert reader.inside


@settings(derandomize=True, deadline=None)
@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_are_frames_or_refused(stream: bytes) -> None:
    """Arbitrary bytes never do anything but come out as frames, wait for more, or be refused."""
    reader = FrameReader(limit=64)
    try:
        found = b"".join(framed(bytes(frame)) for frame in reader.feed(stream))
    except FrameError as refused:
        reason = refused.reason
    else:
        assert stream.startswith(found)
        assert reader.inside == (len(found) < len(stream))
        return
    assert reason == Reason.TOO_LONG

"""Frames are found wherever the stream is cut, and what is no frame is named."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.errors import FrameError
from evenkeel.wire.framing import MAX_FRAME_BYTES, SMALL_FRAME_BYTES, FrameReader, Reason

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
    """A frame of exactly the limit is fine, and a promise of 64 MiB allocates two."""
    reader = FrameReader()
    assert list(reader.feed(struct.pack("<I", MAX_FRAME_BYTES) + b"x")) == []
    assert reader.inside
    assert len(reader.room()) < 2 << 20


@pytest.mark.parametrize("portion", [70_000, 5_000_000])
@pytest.mark.parametrize("size", [SMALL_FRAME_BYTES + 1, 2 << 20, (2 << 20) + 1, 9_000_000])
def test_large_payload_stays_valid(size: int, portion: int) -> None:
    """A large payload, however much of it comes at a time, is whole, and not overwritten by what follows it."""
    large = [bytes([value]) * size for value in (1, 2)]
    stream = framed(large[0], b"small", large[1], b"", b"end")
    reader = FrameReader()
    held = [frame for at in range(0, len(stream), portion) for frame in reader.feed(stream[at : at + portion])]
    assert [len(frame) for frame in held] == [size, 5, size, 0, 3]
    assert [bytes(held[place]) for place in (0, 2)] == large


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.integers(1, 20_000), min_size=1, max_size=40), st.lists(st.integers(1, 9_000), min_size=1, max_size=9)
)
def test_small_frames_survive_the_end_of_the_buffer(sizes: list[int], portions: list[int]) -> None:
    """Where the rest of a frame does not fit behind it, the frame moves; wherever the buffer ends, none is lost."""
    contents = [bytes([place]) * size for place, size in enumerate(sizes)]
    rest, reader, found = memoryview(framed(*contents)), FrameReader(limit=20_000), []
    for portion in itertools.cycle(portions):
        if not rest:
            break
        found += [bytes(frame) for frame in reader.feed(bytes(rest[:portion]))]
        rest = rest[portion:]
    assert found == contents


def test_who_is_trusted_in_mid_stream_may_send_more_at_once() -> None:
    """The buffer grows under a frame that is being read, and nothing that is behind it is lost."""
    contents = [b"hello", b"a" * 50, b"b" * 100_000]
    reader, found = FrameReader(limit=64), []
    assert len(reader.room()) < 1000
    for piece in (framed(*contents)[:100], framed(*contents)[100:]):
        for frame in reader.feed(piece):
            found.append(bytes(frame))
            reader.allow(MAX_FRAME_BYTES)
    assert found == contents


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.integers(1, 200_000), min_size=1, max_size=6), st.lists(st.integers(1, 90_000), min_size=1, max_size=9)
)
def test_transport_fills_the_room(sizes: list[int], portions: list[int]) -> None:
    """A transport that puts as much as it likes into the room gives the same frames as one that feeds."""
    contents = [bytes([place]) * size for place, size in enumerate(sizes)]
    rest, reader, found = memoryview(framed(*contents)), FrameReader(), []
    for portion in itertools.cycle(portions):
        if not rest:
            break
        room = reader.room()
        size = min(portion, len(room), len(rest))
        room[:size], rest = rest[:size], rest[size:]
        found += [bytes(frame) for frame in reader.advance(size)]
    assert found == contents
    assert not reader.inside


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

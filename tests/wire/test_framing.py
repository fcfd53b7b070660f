"""`FrameReader` finds frames however a stream is split, and rejects invalid frames with a reason."""

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
def test_frames_survive_any_split(contents: list[bytes], cuts: list[int]) -> None:
    """The frames do not depend on how the stream is split."""
    reader = FrameReader()
    found = [bytes(frame) for piece in pieces(framed(*contents), cuts) for frame in reader.feed(piece)]
    assert found == contents
    assert not reader.mid_frame


def test_large_frame_arrives_byte_by_byte_and_with_its_successor() -> None:
    """A frame that arrives in many pieces is complete, and the next frames in the last piece are not lost."""
    contents = [b"a" * 100_000, b"", b"b"]
    stream = framed(*contents)
    reader = FrameReader()
    found = [bytes(frame) for at in range(0, len(stream), 999) for frame in reader.feed(stream[at : at + 999])]
    assert found == contents


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_too_long_frame_is_refused_by_its_header(length: int) -> None:
    """A frame is rejected as soon as its header announces too many bytes."""
    with pytest.raises(FrameError) as refused:
        list(FrameReader().feed(struct.pack("<I", length)))
    assert refused.value.reason == Reason.TOO_LONG
    assert str(length) in str(refused.value)


def test_longest_frame_is_accepted() -> None:
    """A frame of exactly the limit is accepted, and an announcement of 64 MiB allocates two."""
    reader = FrameReader()
    assert list(reader.feed(struct.pack("<I", MAX_FRAME_BYTES) + b"x")) == []
    assert reader.mid_frame
    assert len(reader.buffer()) < 2 << 20


@pytest.mark.parametrize("portion", [70_000, 5_000_000])
@pytest.mark.parametrize("size", [SMALL_FRAME_BYTES + 1, 2 << 20, (2 << 20) + 1, 9_000_000])
def test_large_payload_stays_valid(size: int, portion: int) -> None:
    """A large payload is complete for any portions, and later frames do not overwrite it."""
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
    """A frame is moved if the rest of it does not fit behind it; no frame is lost at the end of the buffer."""
    contents = [bytes([place]) * size for place, size in enumerate(sizes)]
    rest, reader, found = memoryview(framed(*contents)), FrameReader(limit=20_000), []
    for portion in itertools.cycle(portions):
        if not rest:
            break
        found += [bytes(frame) for frame in reader.feed(bytes(rest[:portion]))]
        rest = rest[portion:]
    assert found == contents


def test_the_limit_can_be_raised_in_mid_stream() -> None:
    """The buffer grows while a frame is being read, and the bytes behind the frame are not lost."""
    contents = [b"hello", b"a" * 50, b"b" * 100_000]
    reader, found = FrameReader(limit=64), []
    assert len(reader.buffer()) < 1000
    for piece in (framed(*contents)[:100], framed(*contents)[100:]):
        for frame in reader.feed(piece):
            found.append(bytes(frame))
            reader.set_limit(MAX_FRAME_BYTES)
    assert found == contents


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.integers(1, 200_000), min_size=1, max_size=6), st.lists(st.integers(1, 90_000), min_size=1, max_size=9)
)
def test_transport_writes_into_the_buffer(sizes: list[int], portions: list[int]) -> None:
    """`buffer` and `advance` yield the same frames as `feed`."""
    contents = [bytes([place]) * size for place, size in enumerate(sizes)]
    rest, reader, found = memoryview(framed(*contents)), FrameReader(), []
    for portion in itertools.cycle(portions):
        if not rest:
            break
        buffer = reader.buffer()
        size = min(portion, len(buffer), len(rest))
        buffer[:size], rest = rest[:size], rest[size:]
        found += [bytes(frame) for frame in reader.advance(size)]
    assert found == contents
    assert not reader.mid_frame


@settings(derandomize=True, deadline=None)
@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_are_frames_or_rejected(stream: bytes) -> None:
    """Arbitrary bytes are frames, an incomplete frame, or rejected."""
    reader = FrameReader(limit=64)
    try:
        found = b"".join(framed(bytes(frame)) for frame in reader.feed(stream))
    except FrameError as refused:
        reason = refused.reason
    else:
        assert stream.startswith(found)
        assert reader.mid_frame == (len(found) < len(stream))
        return
    assert reason == Reason.TOO_LONG

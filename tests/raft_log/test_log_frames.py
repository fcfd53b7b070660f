"""The frame reader never fails on any bytes, and never returns a round that was not written."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel_raft.errors import LogError
from evenkeel_raft.log.log_frames import (
    FRAME_BYTES,
    HEADER_BYTES,
    Draft,
    Layout,
    first_frame,
    header_format,
    parse_header,
)
from evenkeel_raft.log.log_records import Created, decode_records
from tests.raft_log.model import Writer, from_recovered
from tests.raft_log.sim import SimDisk
from tests.raft_log.support import open_log

LAYOUT = Layout(b"v" * 16)
RECORDS = [Created(1, 2, 3, b"orders/0"), Created(4, 5, 6, b"")]


def frame(*, segment: int = 9, offset: int = HEADER_BYTES, round_: int = 5, layout: Layout = LAYOUT) -> bytes:
    draft = Draft(RECORDS)
    return bytes(draft.bind(layout, segment=segment, offset=offset, round_=round_, floor=2))


def placed(data: bytes, *, offset: int = HEADER_BYTES) -> memoryview:
    return memoryview(bytes(offset) + data)


def test_round_trip() -> None:
    """A frame decodes to its records, round, floor and end."""
    data = placed(frame())
    found = LAYOUT.frame_at(data, HEADER_BYTES, segment=9)
    assert found is not None
    assert (found.round, found.floor, found.end, found.records()) == (5, 2, len(data), RECORDS)


def test_a_frame_counts_only_where_it_was_written() -> None:
    """A frame is invalid in another segment, at another offset or on another volume."""
    assert LAYOUT.frame_at(placed(frame()), HEADER_BYTES, segment=8) is None
    assert LAYOUT.frame_at(placed(frame(), offset=HEADER_BYTES + 8), HEADER_BYTES + 8, segment=9) is None
    assert Layout(b"w" * 16).frame_at(placed(frame()), HEADER_BYTES, segment=9) is None


@given(st.integers(0, 8 * len(frame()) - 1))
@settings(derandomize=True)
def test_every_flipped_bit_shows(bit: int) -> None:
    """Every flipped bit of a frame is detected."""
    data = bytearray(placed(frame()))
    data[HEADER_BYTES + bit // 8] ^= 1 << bit % 8
    assert LAYOUT.frame_at(memoryview(data), HEADER_BYTES, segment=9) is None


@given(st.integers(0, len(frame()) - 1))
@settings(derandomize=True)
def test_every_cut_shows(length: int) -> None:
    """A truncated frame is invalid."""
    assert LAYOUT.frame_at(placed(frame()[:length]), HEADER_BYTES, segment=9) is None


@given(st.integers(0, 8 * (HEADER_BYTES - 1)))
@settings(derandomize=True)
def test_every_flipped_bit_of_a_header_shows_or_does_not_matter(bit: int) -> None:
    """A header decodes to itself, or is invalid."""
    whole = LAYOUT.header(segment=3, size=9, first_round=17, floor=4)
    data = bytearray(whole)
    data[bit // 8] ^= 1 << bit % 8
    found = parse_header(bytes(data))
    assert found is None or found == parse_header(whole)


@given(st.binary(max_size=200))
@settings(derandomize=True)
def test_random_bytes_are_nothing(data: bytes) -> None:
    """Random bytes yield neither a header nor a frame nor an exception."""
    assert header_format(data) == 0
    assert parse_header(data) is None
    assert first_frame(bytes(HEADER_BYTES) + data)[0] == 0
    assert LAYOUT.frame_at(memoryview(data), 0, segment=9) is None
    assert list(LAYOUT.frames_from(data, 0, segment=9)) == []


@given(st.binary(max_size=300))
@settings(derandomize=True)
def test_invalid_records_are_detected(noise: bytes) -> None:
    """Invalid records under a valid checksum decode to None."""
    draft = Draft([])
    draft._buffer += noise
    data = placed(bytes(draft.bind(LAYOUT, segment=9, offset=HEADER_BYTES, round_=1, floor=1)))
    found = LAYOUT.frame_at(data, HEADER_BYTES, segment=9)
    assert found is not None
    assert found.records() in (None, [])


def test_deep_nesting_is_no_record() -> None:
    """Deeply nested MessagePack decodes to None."""
    draft = Draft([])
    draft._buffer[FRAME_BYTES:] = b"\xdd\0\0\0\1\x97\1" + b"\x91" * 100_000
    data = placed(bytes(draft.bind(LAYOUT, segment=9, offset=HEADER_BYTES, round_=1, floor=1)))
    found = LAYOUT.frame_at(data, HEADER_BYTES, segment=9)
    assert found is not None
    assert found.records() is None


def test_frames_are_found_after_damage() -> None:
    """All frames are found at any offset; bytes that only resemble one are skipped."""
    tail = frame(offset=HEADER_BYTES + 300, round_=7)
    similar = frame(offset=1, round_=8)
    data = bytes(HEADER_BYTES) + (b"?" * 100 + similar).ljust(300, b"?") + tail
    assert [found.round for found in LAYOUT.frames_from(data, HEADER_BYTES, segment=9)] == [7]


def test_unknown_fields_at_the_end_are_ignored() -> None:
    """A record of a later version with one more field is decoded."""
    assert decode_records(b"\xdd\0\0\0\1\x96\1\1\2\3\xc4\0\x2a") == [Created(1, 2, 3, b"")]


class History:
    """A disk after some rounds, the log's contents after each, and the last round's offset."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        log, _ = open_log(self.disk)
        writer = Writer(Random(3))
        self.states = [writer.model.copy()]
        for _ in range(120):
            records = writer.round()
            for record in records:
                log.heads.admit(record)
            log.write(records)
            self.states.append(writer.model.copy())
        newest = log._index.segments[-1]
        self.newest = newest.name
        self.last = newest.place(newest.next_round - 1)[0]

    def damaged(self, rng: Random) -> tuple[SimDisk, bool]:
        """Return a copy with one damaged file, and whether that may look like a torn write."""
        copy = SimDisk()
        for name in self.disk.names():
            copy.allocate(name, self.disk.size(name))
            copy.write(name, 0, self.disk.read(name, 0, self.disk.size(name)))
        name = rng.choice(sorted(copy.files))
        file = copy.files[name]
        at = rng.choice([0, rng.randrange(len(file.cache))])
        length = min(rng.choice([1, 40, 600, 3000, 5000]), len(file.cache) - at)
        match rng.randrange(4):
            case 0:
                file.cache[at] ^= 1 << rng.randrange(8)
                length = 1
            case 1:
                file.cache[at : at + length] = rng.randbytes(length)
            case 2:
                file.cache[at : at + length] = bytes(length)
            case _:
                length = len(file.cache) - at
                del file.cache[at:]
        file.durable[:] = file.cache
        file.dirty.clear()
        return copy, name == self.newest and at + length > self.last


@pytest.fixture(scope="module")
def history() -> History:
    return History()


@pytest.mark.parametrize("seed", range(300))
def test_a_damaged_log_is_read_right_or_refused(history: History, seed: int) -> None:
    """With any damage to one file, everything acknowledged is recovered, or an error names a file.

    Only damage to the last round may look like a torn write; then the contents before it are recovered.
    """
    copy, tail = history.damaged(Random(seed))
    try:
        _, found = open_log(copy)
    except LogError as error:
        named = str(error).split(",")[0].split(":")[0]
        assert named in copy.files
    else:
        assert from_recovered(found) in (history.states if tail else history.states[-1:])

"""The on-disk format of a segment: a header in its own block, then rounds of one frame each.

    header  magic, format, volume, segment, size of the file, first round, floor, checksum
    frame   magic, segment, round, floor, length, checksum, records

`segment` is unique within the log. Files are reused without being cleared; the number distinguishes a frame from those
that an earlier segment left in the file. The checksum covers everything before it, the records, the volume and the
offset, so that a frame is valid only where it was written. `floor` is the oldest round still needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from zlib_ng.zlib_ng import crc32  # the same checksum as zlib's, thirty times faster

from evenkeel_raft.log.log_records import StoredRecord, decode_records, encode_records

__all__ = [
    "FIRST_BYTES",
    "FORMAT",
    "FRAME_BYTES",
    "HEADER_BYTES",
    "Draft",
    "Frame",
    "Header",
    "Layout",
    "first_frame",
    "header_format",
    "parse_header",
]

FORMAT: Final = 1
HEADER_BYTES: Final = 4096
FIRST_BYTES: Final = 2 * HEADER_BYTES  # enough for a file's header and its first frame's header

_HEADER_MAGIC: Final = b"EKLOGSEG"
_FRAME_MAGIC: Final = b"\xf0EK\x0f"
_HEADER: Final = struct.Struct("<8sI16sQQQQ")
_FRAME: Final = struct.Struct("<4sQQQI")
_NEEDLE: Final = struct.Struct("<4sQ")
_CHECKSUM: Final = struct.Struct("<I")
_HEADER_END: Final = _HEADER.size + _CHECKSUM.size
FRAME_BYTES: Final = _FRAME.size + _CHECKSUM.size  # a frame's header


class Header(Struct, frozen=True, gc=False):
    """A segment's header."""

    volume: bytes
    segment: int
    size: int
    first_round: int
    floor: int


class Frame(Struct, frozen=True, gc=False):
    """A readable round; `body` is a view into the buffer it was read from."""

    round: int
    floor: int
    body: memoryview
    end: int

    def records(self) -> list[StoredRecord] | None:
        """Decode the records; returns None if this version does not know them."""
        try:
            return decode_records(self.body)
        except (msgspec.MsgspecError, RecursionError):
            return None


class Draft:
    """An encoded round that is not yet bound to a segment and offset."""

    __slots__ = ("_buffer", "sizes")

    def __init__(self, records: Sequence[StoredRecord]) -> None:
        self._buffer = bytearray(FRAME_BYTES)
        self.sizes = encode_records(records, self._buffer)

    def __len__(self) -> int:
        return len(self._buffer)

    def bind(self, layout: Layout, *, segment: int, offset: int, round_: int, floor: int) -> bytearray:
        """Return the bytes to write at this offset."""
        buffer = self._buffer
        _FRAME.pack_into(buffer, 0, _FRAME_MAGIC, segment, round_, floor, len(buffer) - FRAME_BYTES)
        checksum = layout.checksum(memoryview(buffer), offset=offset, length=_FRAME.size, end=len(buffer))
        _CHECKSUM.pack_into(buffer, _FRAME.size, checksum)
        return buffer


class Layout:
    """Encodes and decodes the segments of one volume."""

    __slots__ = ("volume",)

    def __init__(self, volume: bytes) -> None:
        self.volume = volume

    def checksum(self, view: memoryview, *, offset: int, length: int, end: int) -> int:
        """Return the checksum of a frame at an offset, skipping the checksum field itself."""
        seed = crc32(self.volume + offset.to_bytes(8, "little"))
        return crc32(view[length + _CHECKSUM.size : end], crc32(view[:length], seed))

    def header(self, *, segment: int, size: int, first_round: int, floor: int) -> bytes:
        """Return a header, padded to its block."""
        fields = _HEADER.pack(_HEADER_MAGIC, FORMAT, self.volume, segment, size, first_round, floor)
        return (fields + _CHECKSUM.pack(crc32(fields))).ljust(HEADER_BYTES, b"\0")

    def frame_at(self, data: memoryview, offset: int, *, segment: int, base: int = 0) -> Frame | None:
        """Return the readable round at an offset of `data`, or None; `data` begins at the file's offset `base`."""
        if offset + FRAME_BYTES > len(data):
            return None
        magic, its_segment, round_, floor, length = _FRAME.unpack_from(data, offset)
        body = offset + FRAME_BYTES
        end = body + length
        if magic != _FRAME_MAGIC or its_segment != segment or end > len(data):
            return None
        expected = self.checksum(data[offset:end], offset=base + offset, length=_FRAME.size, end=end - offset)
        if _CHECKSUM.unpack_from(data, offset + _FRAME.size)[0] != expected:
            return None
        return Frame(round_, floor, data[body:end], end)

    def frames_from(self, data: bytes, offset: int, *, segment: int | None = None) -> Iterator[Frame]:
        """Yield every readable round at or after an offset, of one segment or of any."""
        needle = _FRAME_MAGIC if segment is None else _NEEDLE.pack(_FRAME_MAGIC, segment)
        view = memoryview(data)
        at = data.find(needle, offset)
        while 0 <= at <= len(data) - FRAME_BYTES:
            _, claim = _NEEDLE.unpack_from(data, at)
            frame = self.frame_at(view, at, segment=claim)
            if frame is not None:
                yield frame
            at = data.find(needle, at + 1)


def first_frame(data: bytes) -> tuple[int, int]:
    """Return the segment number in a file's first frame header, and the frame's end; (0, 0) if there is none."""
    if len(data) < HEADER_BYTES + FRAME_BYTES:
        return 0, 0
    magic, segment, _, _, length = _FRAME.unpack_from(data, HEADER_BYTES)
    return (segment, HEADER_BYTES + FRAME_BYTES + length) if magic == _FRAME_MAGIC else (0, 0)


def parse_header(data: bytes) -> Header | None:
    """Return the header at the start of a segment, or None if it is not intact."""
    if not header_format(data):
        return None
    _, _, volume, segment, size, first_round, floor = _HEADER.unpack_from(data)
    return Header(volume, segment, size, first_round, floor)


def header_format(data: bytes) -> int:
    """Return the format of an intact header, else 0. All formats share the header's layout up to the checksum."""
    if len(data) < _HEADER_END or not data.startswith(_HEADER_MAGIC):
        return 0
    if _CHECKSUM.unpack_from(data, _HEADER.size)[0] != crc32(data[: _HEADER.size]):
        return 0
    format_: int = _HEADER.unpack_from(data)[1]
    return format_

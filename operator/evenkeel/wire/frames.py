"""Where one frame ends and the next begins: a little-endian u32 length, then that many bytes.

The reader is fed whatever a transport delivers. It never allocates by what a length promises, only by what arrived, so
that four wrong bytes cannot cost 64 MiB.

Everything that makes a connection unusable has a name here; whoever owns the connection counts it under that name and
closes that connection only.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from evenkeel.errors import FrameError

__all__ = ["HEADER", "MAX_FRAME_BYTES", "Drops", "FrameReader", "Reason"]

MAX_FRAME_BYTES: Final = 64 << 20
HEADER: Final = struct.Struct("<I")


class Reason(StrEnum):
    """Why a connection was given up."""

    TOO_LONG = "too-long"
    """A length past the limit."""
    TRUNCATED = "truncated"
    """The stream ended inside a frame."""
    UNDECODABLE = "undecodable"
    """Bytes that are no message."""
    UNKNOWN_KIND = "unknown-kind"
    """A message of a kind that this version does not know, or that this end never receives."""
    UNEXPECTED = "unexpected"
    """A known kind out of place: before the hello, or an answer to nothing that was asked."""
    SILENT = "silent"
    """Nothing was heard for too long."""
    VERSION = "version"
    """The other end speaks another version."""
    CLUSTER = "cluster"
    """The other end belongs to another cluster."""
    UNKNOWN_PEER = "unknown-peer"
    """A store that nobody told us of."""
    VOLUME = "volume"
    """The right store with another volume than expected."""
    MISDIRECTED = "misdirected"
    """Meant for another store than the one it reached."""
    OCCUPIED = "occupied"
    """Another state machine is connected already."""
    REPLACED = "replaced"
    """The same peer connected anew."""
    TLS = "tls"
    """No TLS session came about."""
    CORRUPT = "corrupt"
    """A part of a file that does not have the checksum it should have."""


Drops = Counter[str]
"""How often each `Reason` occurred."""


class FrameReader:
    """Cuts a stream of bytes into frames."""

    __slots__ = ("_partial", "_wanted", "limit")

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self._partial = bytearray()
        self._wanted = HEADER.size

    @property
    def inside(self) -> bool:
        """Whether the stream must not end here."""
        return bool(self._partial)

    def feed(self, data: bytes | bytearray) -> Iterator[memoryview]:
        """Yield the frames that are now complete; each is valid until the next is asked for."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._wanted:
                return
            data, self._partial = self._partial, bytearray()
        view, start, end = memoryview(data), 0, len(data)
        self._wanted = HEADER.size
        while end - start >= HEADER.size:
            stop = start + HEADER.size + self._length(view, start)
            if stop > end:
                self._wanted = stop - start
                break
            yield view[start + HEADER.size : stop]
            start = stop
        if start < end:
            self._partial = bytearray(view[start:])

    def _length(self, view: memoryview, start: int) -> int:
        length: int = HEADER.unpack_from(view, start)[0]
        if length > self.limit:
            raise FrameError(Reason.TOO_LONG, f"a frame of {length} bytes; the limit is {self.limit}")
        return length

"""Where one frame ends and the next begins: a little-endian u32 length, then that many bytes.

The reader takes whatever a transport delivers. Past two megabytes it does not allocate by what a length promises, only
by what arrived, so that four wrong bytes cannot cost 64 MiB.

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

__all__ = ["HEADER", "MAX_FRAME_BYTES", "SMALL_FRAME_BYTES", "Drops", "FrameReader", "Reason"]

MAX_FRAME_BYTES: Final = 64 << 20
HEADER: Final = struct.Struct("<I")
SMALL_FRAME_BYTES: Final = 5 << 18
"""A megabyte of entries, which is about what is sent at a time, with all that belongs to them."""
_SHARED_BYTES: Final = 2 * SMALL_FRAME_BYTES
_LEAST_ROOM: Final = 64 << 10
_TRUSTED_BYTES: Final = 2 << 20


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
    """Cuts a stream of bytes into frames.

    Small frames are read many at a time into one buffer that is used again and again. A large frame gets a buffer of
    its own, into which the transport puts the rest of it: large payloads are never copied, and stay valid for as long
    as somebody holds them.
    """

    __slots__ = ("_end", "_filled", "_frame", "_length", "_shared", "_start", "limit")

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self._shared = memoryview(b"")
        self._start = 0
        self._end = 0
        self._frame: memoryview | None = None
        self._filled = 0
        self._length = 0
        self.allow(limit)

    def allow(self, limit: int) -> None:
        """Take frames up to this length from now on; who may send little costs little."""
        self.limit = limit
        shared = memoryview(bytearray(min(_SHARED_BYTES, 2 * (HEADER.size + limit))))
        if len(shared) > len(self._shared):
            shared[: self._end] = self._shared[: self._end]
            self._shared = shared

    @property
    def inside(self) -> bool:
        """Whether the stream must not end here."""
        return self._frame is not None or self._start < self._end

    def room(self) -> memoryview:
        """Return where the next bytes are to be put; at least one fits."""
        return self._shared[self._end :] if self._frame is None else self._frame[self._filled :]

    def advance(self, size: int) -> Iterator[memoryview]:
        """Take note of bytes put there; yield the frames that are now complete.

        A payload of up to `SMALL_FRAME_BYTES` is valid only until the next is asked for.
        """
        if self._frame is not None:
            self._filled += size
            if self._filled == self._length:
                whole, self._frame = self._frame, None
                yield whole
            elif self._filled == len(self._frame):
                self._frame = _grown(self._frame, self._length)
        else:
            self._end += size
            yield from self._cut()

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Put bytes there; yield the frames that are now complete."""
        rest = memoryview(data)
        while rest:
            room = self.room()
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            rest = rest[size:]
            yield from self.advance(size)

    def _cut(self) -> Iterator[memoryview]:
        whole = _LEAST_ROOM
        while self._end - self._start >= HEADER.size:
            begin = self._start + HEADER.size
            (length,) = HEADER.unpack_from(self._shared, self._start)
            if length > self.limit:
                raise FrameError(Reason.TOO_LONG, f"a frame of {length} bytes; the limit is {self.limit}")
            if begin + length <= self._end and length <= SMALL_FRAME_BYTES:
                self._start = begin + length
                yield self._shared[begin : self._start]
            elif length > SMALL_FRAME_BYTES:
                yield from self._begin(begin, length)
            else:
                whole = HEADER.size + length
                break
        self._keep_rest(whole)

    def _begin(self, begin: int, length: int) -> Iterator[memoryview]:
        """Move a large frame, as far as it is there, to a buffer of its own."""
        there = min(length, self._end - begin)
        frame = memoryview(bytearray(min(length, max(2 * there, _TRUSTED_BYTES))))
        frame[:there] = self._shared[begin : begin + there]
        self._start = begin + there
        if there == length:
            yield frame
        else:
            self._frame, self._filled, self._length = frame, there, length

    def _keep_rest(self, whole: int) -> None:
        """Keep a frame that is there in part, where it is if the rest of its bytes fits behind it."""
        rest = self._end - self._start
        if rest and self._start + whole <= len(self._shared):
            return
        if rest:
            self._shared[:rest] = self._shared[self._start : self._end]
        self._start, self._end = 0, rest


def _grown(frame: memoryview, length: int) -> memoryview:
    grown = memoryview(bytearray(min(length, 2 * len(frame))))
    grown[: len(frame)] = frame
    return grown

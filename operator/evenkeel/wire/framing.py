"""Where one frame ends and the next begins: a little-endian u32 length, then that many bytes.

The reader accepts bytes in any portions. Past two megabytes it allocates memory for bytes that have arrived, not for
the announced length, so four wrong bytes cannot cost 64 MiB.

`Reason` names everything that makes a connection unusable. The owner of the connection counts it under that name and
closes only that connection.
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
"""A megabyte of entries, which is about what is sent at a time, with its overhead."""
_SHARED_BYTES: Final = 2 * SMALL_FRAME_BYTES
_LEAST_ROOM: Final = 64 << 10
_TRUSTED_BYTES: Final = 2 << 20


class Reason(StrEnum):
    """Why a connection was dropped."""

    TOO_LONG = "too-long"
    """A frame is longer than the limit."""
    TRUNCATED = "truncated"
    """The stream ended inside a frame."""
    UNDECODABLE = "undecodable"
    """A payload is not a valid message."""
    UNKNOWN_KIND = "unknown-kind"
    """A message has a kind that this version does not know, or that this end never receives."""
    UNEXPECTED = "unexpected"
    """A known kind is out of place: it precedes the hello, or answers no request."""
    SILENT = "silent"
    """Nothing arrived before a timeout."""
    VERSION = "version"
    """The other end speaks another version."""
    CLUSTER = "cluster"
    """The other end belongs to another cluster."""
    UNKNOWN_PEER = "unknown-peer"
    """A store that is not a known peer."""
    VOLUME = "volume"
    """A known store has another volume than expected."""
    MISDIRECTED = "misdirected"
    """The message is addressed to another store."""
    OCCUPIED = "occupied"
    """Another state machine is connected already."""
    REPLACED = "replaced"
    """The same peer has a newer connection."""
    TLS = "tls"
    """The TLS handshake failed."""
    CORRUPT = "corrupt"
    """A part of a file has the wrong checksum."""


Drops = Counter[str]
"""How often each `Reason` occurred."""


class FrameReader:
    """Splits a stream of bytes into frames.

    Small frames share one buffer, which is reused. A large frame gets a buffer of its own, into which the transport
    writes the rest of the frame, so large payloads are not copied and stay valid while they are referenced.
    """

    __slots__ = ("_end", "_filled", "_frame", "_length", "_shared", "_start", "limit")

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self._shared = memoryview(b"")
        self._start = 0
        self._end = 0
        self._frame: memoryview | None = None
        self._filled = 0
        self._length = 0
        self.set_limit(limit)

    def set_limit(self, limit: int) -> None:
        """Accept frames up to this length from now on; a low limit also keeps the buffer small."""
        self.limit = limit
        shared = memoryview(bytearray(min(_SHARED_BYTES, 2 * (HEADER.size + limit))))
        if len(shared) > len(self._shared):
            shared[: self._end] = self._shared[: self._end]
            self._shared = shared

    @property
    def mid_frame(self) -> bool:
        """Whether a part of a frame was read."""
        return self._frame is not None or self._start < self._end

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes; it has room for at least one."""
        return self._shared[self._end :] if self._frame is None else self._frame[self._filled :]

    def advance(self, size: int) -> Iterator[memoryview]:
        """Account for bytes written to `buffer`; yield the frames that are now complete.

        A payload of up to `SMALL_FRAME_BYTES` is valid only until the next one is requested.
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
        """Read bytes; yield the frames that are now complete."""
        rest = memoryview(data)
        while rest:
            buffer = self.buffer()
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            rest = rest[size:]
            yield from self.advance(size)

    def _cut(self) -> Iterator[memoryview]:
        whole = _LEAST_ROOM
        while self._end - self._start >= HEADER.size:
            begin = self._start + HEADER.size
            (length,) = HEADER.unpack_from(self._shared, self._start)
            if length > self.limit:
                raise FrameError(Reason.TOO_LONG, f"frame of {length} bytes exceeds the limit of {self.limit}")
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
        """Move the available part of a large frame to a buffer of its own."""
        available = min(length, self._end - begin)
        frame = memoryview(bytearray(min(length, max(2 * available, _TRUSTED_BYTES))))
        frame[:available] = self._shared[begin : begin + available]
        self._start = begin + available
        if available == length:
            yield frame
        else:
            self._frame, self._filled, self._length = frame, available, length

    def _keep_rest(self, whole: int) -> None:
        """Keep an incomplete frame; it is moved only if the rest of it would not fit behind it."""
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

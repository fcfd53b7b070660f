"""Payloads in several pieces, so that large values are sent without being copied into one payload.

A struct that is encoded as an array can be split before its last field: encoded with `NOTHING` in that field, it yields
the bytes that precede the field. This works for messages that end with a list of entries, each of which ends with its
data.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from evenkeel.errors import FrameError
from evenkeel.wire.framing import MAX_FRAME_BYTES, Reason

__all__ = ["LARGE_BYTES", "NOTHING", "Bytes", "Pieces"]

Bytes = bytes | bytearray

LARGE_BYTES: Final = 8 << 10
"""From this size on, a separate piece costs less than a copy."""
NOTHING: Final[Any] = msgspec.Raw(b"")
"""Stands for a last field whose value follows as a separate piece."""

_encoder: Final = msgspec.msgpack.Encoder()
_FEW: Final = 16
_LIST: Final = struct.Struct(">BI")
_LIST_CODE: Final = 0xDD
_SHORT: Final = struct.Struct(">BH")
_SHORT_LIST_CODE: Final = 0xDC
_SHORT_BYTES_CODE: Final = 0xC5
_BYTES_CODE: Final = 0xC6
_SHORT_LIMIT: Final = 1 << 16


class Pieces:
    """Builds a payload; small values share a piece."""

    __slots__ = ("_done", "_size", "_small")

    def __init__(self) -> None:
        self._done: list[Bytes] = []
        self._small = bytearray()
        self._size = 0

    def add(self, value: object) -> None:
        """Add a value, or with `NOTHING` in its last field the part before that field."""
        self._small += _encoder.encode(value)

    def add_list(self, length: int) -> None:
        """Begin a list of this many values."""
        if length < _FEW:
            self._small.append(0x90 | length)
        elif length < _SHORT_LIMIT:
            self._small += _SHORT.pack(_SHORT_LIST_CODE, length)
        else:
            self._small += _LIST.pack(_LIST_CODE, length)

    def add_large(self, data: bytes) -> None:
        """Add bytes, at least `LARGE_BYTES` of them."""
        length = len(data)
        short = length < _SHORT_LIMIT
        self._small += _SHORT.pack(_SHORT_BYTES_CODE, length) if short else _LIST.pack(_BYTES_CODE, length)
        self._size += len(self._small) + length
        self._done += (self._small, data)
        self._small = bytearray()

    def take(self) -> list[Bytes]:
        """Return the pieces; joined they are the bytes that `Codec.encode` returns."""
        size = self._size + len(self._small)
        if size > MAX_FRAME_BYTES:
            raise FrameError(Reason.TOO_LONG, f"message of {size} bytes exceeds the frame limit of {MAX_FRAME_BYTES}")
        return [*self._done, self._small] if self._small else self._done

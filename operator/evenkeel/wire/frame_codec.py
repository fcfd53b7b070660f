"""Encodes values as the payloads of frames and decodes them.

Values are msgspec structs encoded as arrays whose first element names the kind. Later releases may append elements: a
reader ignores elements that it does not know, and uses the defaults of elements that are missing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Generic, TypeVar

import msgspec

from evenkeel.errors import FrameError
from evenkeel.wire.framing import MAX_FRAME_BYTES, Reason

__all__ = ["Codec", "kinds_of"]

Out = TypeVar("Out")
In = TypeVar("In")


class Codec(Generic[Out, In]):
    """Encodes the messages of one end, and decodes those of the other."""

    def __init__(self, received: Any, *, kinds: Collection[Any], path: tuple[int, ...] = (0,)) -> None:
        """`kinds` are the kinds that the other end may send; `path` leads to the kind inside the array."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(received)
        self._kinds = frozenset(kinds)
        self._path = path

    def encode(self, value: Out) -> bytes:
        """Encode a value as the payload of a frame."""
        payload = self._encoder.encode(value)
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameError(
                Reason.TOO_LONG, f"message of {len(payload)} bytes exceeds the frame limit of {MAX_FRAME_BYTES}"
            )
        return payload

    def decode(self, payload: memoryview | bytes) -> In:
        """Decode the payload of a frame; `FrameError` if it is not a known, valid message.

        Fields that are memoryviews refer to the payload; all others are copies.
        """
        try:
            value: In = self._decoder.decode(payload)
        except (ValueError, RecursionError) as error:
            raise FrameError(self._reason(payload), str(error)) from None
        return value

    def _reason(self, payload: memoryview | bytes) -> Reason:
        try:
            found = msgspec.msgpack.decode(payload)
            for step in self._path:
                found = found[step]
            known = found in self._kinds
        except (ValueError, RecursionError, TypeError, LookupError):
            return Reason.UNDECODABLE
        return Reason.UNDECODABLE if known else Reason.UNKNOWN_KIND


def kinds_of(*types: type[msgspec.Struct]) -> list[Any]:
    """Return the kinds of these structs."""
    return [kind.__struct_config__.tag for kind in types]

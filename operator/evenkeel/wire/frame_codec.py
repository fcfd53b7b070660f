"""Values to the payloads of frames and back.

Values are msgspec structs laid out as arrays whose first element names the kind. An array may grow at its end: elements
that the reader does not know are ignored, elements that the writer did not know take their defaults.
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
    """Writes values of one union, and reads those of another (what the other end may say)."""

    def __init__(self, received: Any, *, kinds: Collection[Any], path: tuple[int, ...] = (0,)) -> None:
        """`kinds` are the names the other end may use; `path` leads to the name inside the array."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(received)
        self._kinds = frozenset(kinds)
        self._path = path

    def encode(self, value: Out) -> bytes:
        """Return the value as the payload of a frame."""
        payload = self._encoder.encode(value)
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameError(Reason.TOO_LONG, f"a message of {len(payload)} bytes; a frame takes {MAX_FRAME_BYTES}")
        return payload

    def decode(self, payload: memoryview | bytes) -> In:
        """Return what a frame holds; `FrameError` says why it holds nothing we can use.

        Fields that are memoryviews look into the payload; everything else is copied.
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
    """Return the names by which these structs are known."""
    return [kind.__struct_config__.tag for kind in types]

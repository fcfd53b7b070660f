"""What the reference state machine logs.

An entry carries a token, (writer, sequence), by which it is applied once however often it is logged. A writer counts
its sequence up; what is older than the last 1,024 of a writer is refused, for nobody can tell any more whether it was
applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

__all__ = [
    "TOKENS_KEPT",
    "Barrier",
    "Batch",
    "Conditional",
    "Delete",
    "Entry",
    "Upsert",
    "decode_entry",
    "encode_entry",
]

TOKENS_KEPT: Final = 1024

if TYPE_CHECKING:
    Value = bytes
else:
    # What is decoded looks into the data it came in, which has to stay as long as the entry: values may be large.
    Value = memoryview


class _Tokened(Struct, array_like=True, frozen=True, gc=False):
    writer: str
    sequence: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Keyed(_Tokened, frozen=True):
    key: bytes


class Upsert(_Keyed, tag="upsert", frozen=True):
    """Set a key, whatever it holds."""

    value: Value


class Delete(_Keyed, tag="delete", frozen=True):
    """Remove a key, if it is there."""


class Conditional(_Keyed, tag="conditional", frozen=True):
    """Set a key (or remove it: None) only if it holds what is expected (None: nothing)."""

    expected: bytes | None
    value: bytes | None


class Batch(_Tokened, tag="batch", frozen=True):
    """Set many keys at once (or remove them: None), in this order."""

    changes: list[tuple[bytes, bytes | None]]


class Barrier(Struct, tag="barrier", array_like=True, frozen=True, gc=False):
    """Take the hash of the state, here and on every other replica."""


Entry = Upsert | Delete | Conditional | Batch | Barrier

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """Return what is proposed."""
    return _encoder.encode(entry)


def decode_entry(data: bytes) -> Entry:
    """Read what was logged; `ValueError` where it is no entry, which stops the group: skipping it would fork it."""
    decoded: Entry = _decoder.decode(data)
    return decoded

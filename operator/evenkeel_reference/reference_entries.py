"""The entries that the reference state machine logs.

An entry carries a write token, (writer, sequence), so that it is applied once even if it is logged several times. A
writer increments its sequence. Entries older than the last 1,024 tokens of a writer are ignored, because the state
machine no longer knows whether they were applied.
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
    # Values may be large, so decoded entries refer to the data they were decoded from.
    Value = memoryview


class _WithToken(Struct, array_like=True, frozen=True, gc=False):
    writer: str
    sequence: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Keyed(_WithToken, frozen=True):
    key: bytes


class Upsert(_Keyed, tag="upsert", frozen=True):
    """Set a key."""

    value: Value


class Delete(_Keyed, tag="delete", frozen=True):
    """Remove a key, if it exists."""


class Conditional(_Keyed, tag="conditional", frozen=True):
    """Set a key, or remove it (None), only if it has the expected value (None: no value)."""

    expected: bytes | None
    value: bytes | None


class Batch(_WithToken, tag="batch", frozen=True):
    """Set or remove (None) many keys, in this order."""

    changes: list[tuple[bytes, bytes | None]]


class Barrier(Struct, tag="barrier", array_like=True, frozen=True, gc=False):
    """Record a hash of the state on every replica."""


Entry = Upsert | Delete | Conditional | Batch | Barrier

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """Encode an entry for a proposal."""
    return _encoder.encode(entry)


def decode_entry(data: bytes) -> Entry:
    """Decode a logged entry; `ValueError` if it is invalid. The group must stop then: replicas that skip it diverge."""
    decoded: Entry = _decoder.decode(data)
    return decoded

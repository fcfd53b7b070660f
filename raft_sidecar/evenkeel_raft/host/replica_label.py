"""What the log keeps of a replica beside its entries: which partition it is of, and how the group began.

The first configuration is in the label so that a replica's beginning is one record: a crash can not leave a replica
that exists and does not know it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel_raft.core.raft_types import Conf

__all__ = ["ReplicaLabel", "decode_label", "encode_label"]


class ReplicaLabel(msgspec.Struct, frozen=True, array_like=True):
    """A replica's name in full; `genesis` where it is one of the group's first, `cluster` the one its store is of."""

    table: str
    partition: int
    store: str
    genesis: Conf | None = None
    cluster: str = ""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ReplicaLabel)


def encode_label(label: ReplicaLabel) -> bytes:
    """Return the bytes for the log."""
    return _encoder.encode(label)


def decode_label(data: bytes) -> ReplicaLabel:
    """Read a label back."""
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise MalformedRecordError(
            f"the log holds a replica with the label {data[:80]!r}, which is none of this version's: {error}; "
            "run the version that wrote it"
        ) from error

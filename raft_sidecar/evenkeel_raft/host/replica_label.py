"""What the log stores about a replica besides its entries: its partition and how its group began.

The first configuration is part of the label, so that a replica is created by one record. A crash cannot leave a
replica without its first configuration.
"""

from __future__ import annotations

from typing import Final

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel_raft.core.raft_types import Conf

__all__ = ["ReplicaLabel", "decode_label", "encode_label"]


class ReplicaLabel(msgspec.Struct, frozen=True, array_like=True):
    """Full name of a replica. `genesis` is set for the first replicas of a group; `cluster` is the store's cluster."""

    table: str
    partition: int
    store: str
    genesis: Conf | None = None
    cluster: str = ""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ReplicaLabel)


def encode_label(label: ReplicaLabel) -> bytes:
    """Encode a label for the log."""
    return _encoder.encode(label)


def decode_label(data: bytes) -> ReplicaLabel:
    """Decode a label from the log."""
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise MalformedRecordError(
            f"cannot decode the replica label {data[:80]!r} in the log: {error}; run the release that wrote it"
        ) from error

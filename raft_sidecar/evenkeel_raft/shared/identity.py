"""A store's identity, and the addresses and link settings of its peers."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Address", "Identity", "LinkSettings"]


class Identity(NamedTuple):
    """The identity a store sends to its peers. A wiped store has a new volume, so peers treat it as a new store."""

    cluster: str
    store: str
    volume: str


class Address(NamedTuple):
    """A peer's address, and the volume that it must identify itself with."""

    host: str
    port: int
    volume: str


class LinkSettings(NamedTuple):
    """Settings of the links between stores: times in seconds, sizes in bytes."""

    hello_seconds: float = 3.0
    connect_seconds: float = 3.0
    alive_seconds: float = 0.5
    silent_seconds: float = 3.0
    first_retry: float = 0.02
    last_retry: float = 1.0
    outbox_bytes: int = 32 << 20
    batch_bytes: int = 1 << 20
    skew_seconds: float = 10.0
    """How often to ask a peer for its wall clock."""
    notice_seconds: float = 0.005
    """How long a commit notice may wait for another message to travel with."""

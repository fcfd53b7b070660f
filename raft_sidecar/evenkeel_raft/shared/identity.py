"""Who a store is, and where its peers are."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Address", "Identity", "LinkSettings"]


class Identity(NamedTuple):
    """A store as it introduces itself. A wiped store has another volume, and is another one to its peers."""

    cluster: str
    store: str
    volume: str


class Address(NamedTuple):
    """Where a peer is found, and with which volume it must answer."""

    host: str
    port: int
    volume: str


class LinkSettings(NamedTuple):
    """Times in seconds, sizes in bytes."""

    hello_seconds: float = 3.0
    connect_seconds: float = 3.0
    alive_seconds: float = 0.5
    silent_seconds: float = 3.0
    first_retry: float = 0.02
    last_retry: float = 1.0
    outbox_bytes: int = 32 << 20
    batch_bytes: int = 1 << 20
    skew_seconds: float = 10.0
    """How often a peer is asked what its wall clock says."""
    notice_seconds: float = 0.005
    """How long news of a commit may wait for something that carries it along."""

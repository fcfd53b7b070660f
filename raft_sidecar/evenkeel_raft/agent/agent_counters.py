"""Counters of the agent that the process exports as metrics."""

from __future__ import annotations

from collections import Counter

import msgspec

__all__ = ["Counters"]


class Counters(msgspec.Struct, kw_only=True):
    """Counts since the process started; all of them only grow, except the watch lag."""

    transactions: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """By kind (lock, switch, leader, ...) and outcome (done, refused, unknown)."""
    reads: int = 0
    """Partitions read linearizably."""
    proposals: Counter[str] = msgspec.field(default_factory=Counter)
    """Configurations proposed to raft, by kind: stage, final, leave."""
    transfers: Counter[str] = msgspec.field(default_factory=Counter)
    """Leadership transfers attempted, by reason: change, order, stalled."""
    starts: int = 0
    deletions: int = 0
    failures: Counter[str] = msgspec.field(default_factory=Counter)
    """Failed actions that are retried, by kind: start, delete, propose, transfer, catch-up and others."""
    events: int = 0
    """Watch events for partitions' keys."""
    skipped: int = 0
    """The events that did not concern this store."""
    report_bytes: int = 0
    """Bytes written to report the store's load."""
    sessions: int = 0
    """Metastore sessions started: each lists and watches everything again."""
    watch_lag: float = 0.0
    """Seconds from a transaction's response to its watch event: the latest value, and the maximum below."""
    worst_watch_lag: float = 0.0

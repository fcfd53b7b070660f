"""What the agent counts, for the process to export; plain numbers that only grow, but for the lag."""

from __future__ import annotations

from collections import Counter

import msgspec

__all__ = ["Counters"]


class Counters(msgspec.Struct, kw_only=True):
    """All counts since the process began."""

    transactions: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """By kind (lock, switch, leader, ...) and outcome (done, refused, unknown)."""
    reads: int = 0
    """Partitions read linearizably."""
    proposals: Counter[str] = msgspec.field(default_factory=Counter)
    """Configurations logged, by kind: stage, final, leave."""
    transfers: Counter[str] = msgspec.field(default_factory=Counter)
    """Leaderships handed over, or tried to, by why: change, order, stalled."""
    starts: int = 0
    deletions: int = 0
    failures: Counter[str] = msgspec.field(default_factory=Counter)
    """What was tried and has to be tried again, by what: start, delete, propose, transfer, catch-up, and so on."""
    events: int = 0
    """Changes of partitions' keys that the watch showed."""
    skipped: int = 0
    """Those of them that were none of this store's business."""
    report_bytes: int = 0
    """Written to report the store's load."""
    sessions: int = 0
    """How often the metastore was listed and watched anew."""
    watch_lag: float = 0.0
    """Seconds from a transaction's answer until the watch showed what it wrote: the last time, and at worst."""
    worst_watch_lag: float = 0.0

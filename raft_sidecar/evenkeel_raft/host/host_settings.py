"""Times and sizes of a host."""

from __future__ import annotations

from msgspec import Struct

from evenkeel_raft.core.raft_types import Settings

__all__ = ["HostSettings"]


class HostSettings(Struct, frozen=True, kw_only=True):
    """Settings of a host; the defaults suit a local network."""

    tick_seconds: float = 0.1
    raft: Settings = Settings(election_ticks=10, heartbeat_ticks=3)
    sleep_after_ticks: int = 20
    """Ticks without work after which a group sleeps until something wakes it."""
    caught_up_bytes: int = 1 << 20
    """A member that lacks at most this much of the log has caught up."""
    keep_log_bytes: int = 8 << 20
    """Log kept per group for members that are slightly behind."""
    keep_logs_bytes: int = 1 << 30
    """Log kept of all groups together; beyond it, each group keeps its share."""
    max_log_bytes: int = 256 << 20
    """Most log kept for a member that receives a snapshot, and most entries that may wait for a state machine."""
    snapshots_at_once: int = 2
    """Snapshots made and sent at the same time."""
    lag_seconds: float = 5.0
    """A state machine without any answer or progress for this long is not fit to lead."""
    report_damage_seconds: float = 60.0
    """How long damage is still reported after the state was restored."""
    hand_over_seconds: float = 10.0
    """How long a stopping state machine waits for leaderships to be handed over."""
    bytes_per_second: float | None = None
    """Rate limit for snapshots in and out; None means no limit."""

    @property
    def election_seconds(self) -> float:
        """The shortest time without a leader after which a follower campaigns."""
        return self.tick_seconds * self.raft.election_ticks

"""Times and sizes of a host."""

from __future__ import annotations

from msgspec import Struct

from evenkeel_raft.core.raft_types import Settings

__all__ = ["HostSettings"]


class HostSettings(Struct, frozen=True, kw_only=True):
    """What can be set; the defaults suit a local network."""

    tick_seconds: float = 0.1
    raft: Settings = Settings(election_ticks=10, heartbeat_ticks=3)
    sleep_after_ticks: int = 20
    """A group that had nothing to do for so long sleeps until something wakes it."""
    caught_up_bytes: int = 1 << 20
    """A member that lacks no more than this of the log counts as caught up."""
    keep_log_bytes: int = 8 << 20
    """Of each group's log, so much stays for members that are a little behind."""
    keep_logs_bytes: int = 1 << 30
    """Of all groups' logs together; where they are longer, each keeps its share."""
    max_log_bytes: int = 256 << 20
    """So much stays at the most, for a member that is being filled; and so much waits for a state machine."""
    snapshots_at_once: int = 2
    """Snapshots that this store makes and sends at the same time."""
    lag_seconds: float = 5.0
    """A state machine that answers nothing, or applies nothing of what it has to, for so long is not fit to lead."""
    tell_damage_seconds: float = 60.0
    """How long a state that was damaged is spoken of after it was restored."""
    drain_seconds: float = 10.0
    """How long leaderships are tried to be handed over before the state machine is told that it may stop."""
    bytes_per_second: float | None = None
    """For snapshots in and out; None is no limit."""

    @property
    def election_seconds(self) -> float:
        """The shortest time without a leader after which somebody stands."""
        return self.tick_seconds * self.raft.election_ticks

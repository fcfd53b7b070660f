"""Settings of the agent; times are in seconds."""

from __future__ import annotations

import msgspec

from evenkeel.protocol.records import StoreSettings

__all__ = ["AgentSettings", "Tuning"]


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with defaults for a store of about a thousand replicas."""

    lease_seconds: float = 6.0
    """How long a silent store stays registered; the lease is refreshed every third of it."""
    withdraw_seconds: float = 2.0
    """How long a partition may have no serving leader before its last leader's store withdraws the leader record."""
    report_seconds: float = 5.0
    """How often the store reports its load, if it has changed and the byte budget allows it."""
    report_bytes_per_second: float = 45_000.0
    """The byte budget for the reports of all stores together: 162 MB per hour."""
    sweep_seconds: float = 30.0
    """How often all partitions are reconciled without an event."""
    hand_over_seconds: float = 10.0
    """How long a stopping store waits for other stores to take over its leaderships."""
    transactions: int = 16
    """Concurrent transactions, and concurrent batches of reads."""
    replicas_at_once: int = 32
    """Replicas started or deleted concurrently."""
    retry_seconds: float = 0.2
    """The wait after the first failure; it doubles with each failure, with jitter."""
    longest_retry_seconds: float = 30.0
    """The longest wait between retries; retries never stop."""
    degraded_after: int = 6
    """Consecutive failures after which the partition is reported as having a problem."""
    stalled_seconds: float = 30.0
    """How long a snapshot transfer may make no progress before it is reported as a problem."""
    step_down_when_stalled: bool = False
    """Whether a leader hands over to another voter when a snapshot transfer stalls."""
    mark_seconds: float = 10.0
    """How often the newest revision seen is saved on the volume, if it has changed."""
    mark_revisions: int = 1000
    """How many new revisions cause an earlier save."""
    adopt_metastore: bool = False
    """Follow any metastore once, regardless of which one the volume followed before; a person must have checked it."""


class Tuning:
    """The settings in force: those of the process, overridden by the key `settings` while it exists."""

    def __init__(self, own: AgentSettings) -> None:
        self._own = own
        self.current = own

    def apply(self, record: StoreSettings | None) -> None:
        """Apply the record of the key `settings`; None if there is no key."""
        if record is None:
            self.current = self._own
            return
        self.current = msgspec.structs.replace(
            self._own,
            degraded_after=record.degraded_after,
            longest_retry_seconds=record.longest_retry_seconds,
            stalled_seconds=record.stalled_seconds,
            step_down_when_stalled=record.step_down_when_stalled,
        )

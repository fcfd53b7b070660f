"""What can be set about the agent; times in seconds."""

from __future__ import annotations

import msgspec

from evenkeel.protocol.records import StoreSettings

__all__ = ["AgentSettings", "Tuning"]


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults suit a store with a thousand replicas."""

    lease_seconds: float = 6.0
    """How long a store that fell silent counts as registered; the lease is refreshed at a third of it."""
    withdraw_seconds: float = 2.0
    """How long a partition may be without a leader that serves before the store that led it withdraws its report."""
    report_seconds: float = 5.0
    """How often the store's load is reported, where it has changed and the budget allows it."""
    report_bytes_per_second: float = 45_000.0
    """What the reports of all stores together may cost the metastore: 162 MB per hour."""
    sweep_seconds: float = 30.0
    """How often everything is looked at again, whether or not something was heard of it."""
    drain_seconds: float = 10.0
    """How long a stopping store waits for others to take over what it leads."""
    transactions: int = 16
    """Transactions and batches of reads on their way at the same time, of each kind."""
    replicas_at_once: int = 32
    """Replicas being started or deleted at the same time."""
    retry_seconds: float = 0.2
    """The wait after the first attempt that failed; it doubles from attempt to attempt, with jitter."""
    longest_retry_seconds: float = 30.0
    """Retries never stop; this is how slow they get."""
    degraded_after: int = 6
    """Attempts that failed in a row before the partition is reported as having a problem."""
    stalled_seconds: float = 30.0
    """How long a replica may be filled without getting fuller before that is reported as a problem."""
    step_down_when_stalled: bool = False
    """Whether a leader then lets another voter lead, which may get on with it."""
    mark_seconds: float = 10.0
    """How often the newest revision seen is noted on the volume, where it has changed."""
    mark_revisions: int = 1000
    """How many revisions may pass before it is noted sooner than that."""
    adopt_metastore: bool = False
    """Follow the metastore that answers, whatever the volume followed before: for once, after a person has looked."""


class Tuning:
    """The settings in force: the process's own, and over them what the key `settings` says while it is there."""

    def __init__(self, own: AgentSettings) -> None:
        self._own = own
        self.now = own

    def apply(self, record: StoreSettings | None) -> None:
        """Take up what the key says; None where there is no key."""
        if record is None:
            self.now = self._own
            return
        self.now = msgspec.structs.replace(
            self._own,
            degraded_after=record.degraded_after,
            longest_retry_seconds=record.longest_retry_seconds,
            stalled_seconds=record.stalled_seconds,
            step_down_when_stalled=record.step_down_when_stalled,
        )

"""How much of its log each group keeps.

Each group keeps some log for members that are slightly behind, and more for a member that is receiving a snapshot. A
store may hold thousands of groups with all logs in memory, so when the logs are too long in total, each group keeps
only its share of the limit.
"""

from __future__ import annotations

from evenkeel_raft.host.host_settings import HostSettings

__all__ = ["LogRetention"]


class LogRetention:
    """The retention that currently applies to every group of a host."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self.total_bytes = 0
        """Total length of all logs when they were last measured."""
        self.over_limit = False
        """Whether the logs exceed their total limit."""
        self.keep_bytes = settings.keep_log_bytes
        """What a log is cut down to once it is twice as long."""
        self.max_bytes = settings.max_log_bytes
        """What a log keeps at most, even if a member needs more."""

    def update(self, total: int, groups: int) -> None:
        """Adapt to the total length of the logs and the number of groups."""
        settings, share = self._settings, self._settings.keep_logs_bytes // (2 * max(1, groups))
        self.total_bytes = total
        self.over_limit = total > settings.keep_logs_bytes
        self.keep_bytes = min(settings.keep_log_bytes, share) if self.over_limit else settings.keep_log_bytes
        # A member that loses the entries it needs has to be sent a whole snapshot, so this is the last resort.
        far_over_limit = total > 4 * settings.keep_logs_bytes
        self.max_bytes = min(settings.max_log_bytes, 4 * share) if far_over_limit else settings.max_log_bytes

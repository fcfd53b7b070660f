"""How much of its log a group may keep.

Each keeps some for members that are a little behind, and more for one that is being filled. A store may hold thousands
of groups, whose logs are all in memory; so when they are too long together, each has its share of what there may be.
"""

from __future__ import annotations

from evenkeel_raft.host.host_settings import HostSettings

__all__ = ["LogRetention"]


class LogRetention:
    """What holds for every group of a host at the moment."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self.total = 0
        """How long the logs were together when they were last weighed."""
        self.tight = False
        """Whether the logs are too long together."""
        self.keep = settings.keep_log_bytes
        """So much stays, and is cut down to when it has become twice as much."""
        self.most = settings.max_log_bytes
        """So much stays even where a member needs it."""

    def weigh(self, total: int, groups: int) -> None:
        """The logs of so many groups have this many bytes together."""
        settings, share = self._settings, self._settings.keep_logs_bytes // (2 * max(1, groups))
        self.total = total
        self.tight = total > settings.keep_logs_bytes
        self.keep = min(settings.keep_log_bytes, share) if self.tight else settings.keep_log_bytes
        # A member that is cut off has to be sent everything again: that only when there is no other way.
        desperate = total > 4 * settings.keep_logs_bytes
        self.most = min(settings.max_log_bytes, 4 * share) if desperate else settings.max_log_bytes

"""The reasons for which this store is to lead nothing.

While there is one, raft hands over what is led here, and campaigns only where nobody else does; it votes and follows as
ever. None of this needs the metastore, so it holds without one.
"""

from __future__ import annotations

from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.shared.raft_groups import GroupReport

__all__ = ["Reluctance"]

_POLL = 0.05


class Reluctance:
    """Who wants this store to lead nothing, and whether it still does."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.reasons: dict[str, None] = {}

    def add(self, why: str) -> None:
        """Lead nothing from now on, for this reason among others."""
        if not self.reasons:
            self._context.groups.set_leadership_inhibited(True)
        self.reasons[why] = None

    def remove(self, why: str) -> None:
        """This reason is gone."""
        if why in self.reasons:
            del self.reasons[why]
            if not self.reasons:
                self._context.groups.set_leadership_inhibited(False)

    async def until_handed_over(self) -> int:
        """Wait for others to take over what is led here, but not for ever; returns how many groups nobody took."""
        clock = self._context.clock
        until = clock.now() + self._context.settings.drain_seconds
        while any(not report.alone for report in self._led()) and clock.now() < until:
            await clock.sleep(_POLL)
        return len(self._led())

    def _led(self) -> list[GroupReport]:
        return [report for report in self._context.groups.reports().values() if report.leading]

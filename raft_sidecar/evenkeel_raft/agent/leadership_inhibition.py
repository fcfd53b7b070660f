"""The reasons for which this store leads nothing.

While there is a reason, raft hands over the leaderships of this store and campaigns only where no other replica does;
it keeps voting and following. This does not need the metastore.
"""

from __future__ import annotations

from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.shared.raft_groups import GroupReport

__all__ = ["LeadershipInhibition"]

_POLL = 0.05


class LeadershipInhibition:
    """The set of reasons; leadership is inhibited while it is not empty."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self.reasons: dict[str, None] = {}

    def add(self, why: str) -> None:
        """Add a reason to lead nothing."""
        if not self.reasons:
            self._context.groups.set_leadership_inhibited(True)
        self.reasons[why] = None

    def remove(self, why: str) -> None:
        """Remove a reason."""
        if why in self.reasons:
            del self.reasons[why]
            if not self.reasons:
                self._context.groups.set_leadership_inhibited(False)

    async def until_handed_over(self) -> int:
        """Wait until other stores lead all groups, at most `hand_over_seconds`.

        Returns how many groups are still led here.
        """
        clock = self._context.clock
        until = clock.now() + self._context.settings.hand_over_seconds
        while any(not report.alone for report in self._led()) and clock.now() < until:
            await clock.sleep(_POLL)
        return len(self._led())

    def _led(self) -> list[GroupReport]:
        return [report for report in self._context.groups.reports().values() if report.leading]

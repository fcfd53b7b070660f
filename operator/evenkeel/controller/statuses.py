"""Statuses are written where they changed, and each at most every few seconds.

They are for people and for programs that wait; a table of a thousand partitions on the move changes hundreds of times
a second.
"""

from __future__ import annotations

from typing import Final

from evenkeel.controller.ground import Ground
from evenkeel.controller.resources import Resources, Status, WithStatus

__all__ = ["STATUS_SECONDS", "StatusWriter"]

STATUS_SECONDS: Final = 2.0


class StatusWriter:
    """Knows when which status was last written."""

    def __init__(self, resources: Resources, ground: Ground) -> None:
        self._resources = resources
        self._ground = ground
        self._written: dict[tuple[str, str, str], float] = {}

    async def write(self, resource: WithStatus, status: Status) -> float:
        """Write a status where it changed; returns in how many seconds to come again, where it is too early."""
        if status == resource.status:
            return 0.0
        key = (resource.kind, resource.key, resource.metadata.uid)
        now = self._ground.clock.now()
        early = self._written.get(key, float("-inf")) + STATUS_SECONDS - now
        if early > 0:
            return early
        await self._ground.check()
        await self._resources.set_status(resource, status)
        self._written = {other: at for other, at in self._written.items() if at > now - STATUS_SECONDS}
        self._written[key] = now
        return 0.0

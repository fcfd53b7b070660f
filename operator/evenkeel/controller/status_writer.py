"""Writes statuses that changed, after a short delay, and each at most every few seconds.

A table with a thousand moving partitions changes hundreds of times a second. Changes also come in groups, so a short
delay saves writes. A resource that stops being Ready is written without the delay.
"""

from __future__ import annotations

from typing import Final

from evenkeel.controller.controller_context import ControllerContext
from evenkeel.controller.resources_api import Resources, Status, WithStatus
from evenkeel.model.conditions import readable_at

__all__ = ["SETTLE_SECONDS", "STATUS_SECONDS", "StatusWriter", "readable"]

STATUS_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 1.0
"""How long a change waits for more changes; a resource's first status does not wait."""

_FORGOTTEN_SECONDS: Final = 60.0
"""A change that waits for longer belongs to a resource that no longer exists."""
_Key = tuple[str, str, str]


class StatusWriter:
    """Writes statuses, and remembers when each was last written."""

    def __init__(self, resources: Resources, context: ControllerContext) -> None:
        self._resources = resources
        self._context = context
        self._written: dict[_Key, float] = {}
        self._changed: dict[_Key, float] = {}
        """When the waiting change was first seen."""

    async def write(self, resource: WithStatus, status: Status, *, first_at_once: bool = True) -> float:
        """Write a status that changed; return in how many seconds to try again if it has to wait, or 0."""
        key = (resource.kind, resource.key, resource.metadata.uid)
        status = readable(status, self._context.newest_version)
        if status == resource.status:
            self._changed.pop(key, None)
            return 0.0
        now = self._context.clock.now()
        urgent = _is_ready(resource.status) and not _is_ready(status)
        early = self._due(key, now, at_once=urgent or (first_at_once and resource.status is None)) - now
        if early > 0:
            return early
        await self._context.check()
        await self._resources.set_status(resource, status)
        self._changed.pop(key, None)
        self._changed = {other: at for other, at in self._changed.items() if at > now - _FORGOTTEN_SECONDS}
        self._written = {other: at for other, at in self._written.items() if at > now - STATUS_SECONDS}
        self._written[key] = now
        return 0.0

    def _due(self, key: _Key, now: float, *, at_once: bool) -> float:
        settled = now if at_once else self._changed.setdefault(key, now) + SETTLE_SECONDS
        return max(settled, self._written.get(key, float("-inf")) + STATUS_SECONDS)


def readable(status: Status, version: int) -> Status:
    """Return a status without conditions that an operator of this cluster version cannot read."""
    kept = readable_at(version, status.conditions)
    return status if len(kept) == len(status.conditions) else status.model_copy(update={"conditions": kept})


def _is_ready(status: Status | None) -> bool:
    conditions = status.conditions if status is not None else ()
    return any(entry.type == "Ready" and entry.status == "True" for entry in conditions)

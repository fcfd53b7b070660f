"""Whether all replicas have the same rows: now and then the leader has them compared, one partition after the other.

The leader logs a barrier, at which every replica takes the hash of its rows, and then its own hash, which every replica
compares with the one it took: so each knows for itself, and replicas that apply late compare late. Then the leader asks
them all, and sees to those that are alone (`healing`). A partition in which nothing was written since is left alone:
reading it through would wake what rests.
"""

from __future__ import annotations

import logging
from typing import Final

from evenkeel.errors import StoreError
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel_store.engine.group_state import Group
from evenkeel_store.maintenance.replica_repair import AGAIN_SECONDS, ReplicaRepairer
from evenkeel_store.serving.store_service import StoreService

__all__ = ["ReplicaComparer"]

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0


class ReplicaComparer:
    """Has the partitions that are led here compared."""

    def __init__(
        self, service: StoreService, healer: ReplicaRepairer, *, seconds: float, clock: Clock | None = None
    ) -> None:
        self._service = service
        self._healer = healer
        self._seconds = seconds
        self._clock = clock or SystemClock()
        self._since: dict[int, float] = {}
        """When a partition was compared, or first seen to be led here."""
        self._upto: dict[int, int] = {}
        """Up to which index it was compared."""
        self._again: dict[int, float] = {}
        """When it is to be compared whether or not anything was written."""

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Have the partition compared for which it is time, the longest."""
        now, state_machine = self._clock.now(), self._service.state_machine
        led = [number for number in state_machine.open_groups() if state_machine.role_of(number).leader]
        self._forget_verdicts(set(led))
        self._since = {number: self._since.get(number, now) for number in led}
        self._again = {number: at for number, at in self._again.items() if number in self._since}
        due = [number for number in led if now - self._since[number] >= self._seconds]
        soon = [number for number, at in self._again.items() if at <= now]
        for number in (*soon, *sorted(due, key=lambda number: self._since[number])):
            self._since[number] = now
            forced = self._again.pop(number, None) is not None
            group = state_machine.engine.groups.get(number)
            if group is not None and group.metadata.schema is not None and (forced or self._has_changed(group)):
                await self._compare(group)
                return

    def _has_changed(self, group: Group) -> bool:
        return group.metadata.applied > self._upto.get(group.number, 0)

    def _forget_verdicts(self, led: set[int]) -> None:
        """What was found about a partition is its leader's to say."""
        for group in self._service.state_machine.groups_of(""):
            if group.comparison_problem and group.number not in led:
                self._service.set_comparison_problem(group, "")

    async def _compare(self, group: Group) -> None:
        try:
            index, taken = await self._service.take_hash(group)
            # The barrier, and what is logged behind it, are no change.
            self._upto[group.number] = index + 1
            if await self._healer.judge(group, index, taken):
                self._again[group.number] = self._clock.now() + min(AGAIN_SECONDS, self._seconds)
        except StoreError as error:
            # Another leader, or the next time, will do it.
            log.info("comparing is put off: %s", error, extra=group.metadata.fields())

"""Whether all replicas have the same rows: now and then the leader has them compared, one partition after the other.

The leader logs a barrier, at which every replica takes the hash of its rows, and then its own hash, which every replica
compares with the one it took. So no store has to ask another, and replicas that apply late compare late. A partition in
which nothing was written since is left alone: reading it through would wake what rests.
"""

from __future__ import annotations

import logging
from typing import Final

from evenkeel.errors import StoreError
from evenkeel.metastore.clock import Clock, SystemClock
from evenkeel_store.groups import Group
from evenkeel_store.service import Service

__all__ = ["Comparer"]

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0


class Comparer:
    """Has the partitions that are led here compared."""

    def __init__(self, service: Service, *, seconds: float, clock: Clock | None = None) -> None:
        self._service = service
        self._seconds = seconds
        self._clock = clock or SystemClock()
        self._since: dict[int, float] = {}
        """When a partition was compared, or first seen to be led here."""
        self._upto: dict[int, int] = {}
        """Up to which index it was compared."""

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Have the partition compared for which it is time, the longest."""
        now, machine = self._clock.now(), self._service.machine
        led = [number for number in machine.open_groups() if machine.role_of(number).leader]
        self._since = {number: self._since.get(number, now) for number in led}
        due = [number for number in led if now - self._since[number] >= self._seconds]
        for number in sorted(due, key=lambda number: self._since[number]):
            self._since[number] = now
            group = machine.engine.groups.get(number)
            if group is not None and group.head.schema is not None and group.head.applied > self._upto.get(number, 0):
                await self._compare(group)
                return

    async def _compare(self, group: Group) -> None:
        try:
            index, _ = await self._service.take_hash(group)
        except StoreError as error:
            # Another leader, or the next time, will do it.
            log.info("comparing group %d is put off: %s", group.number, error)
        else:
            # The barrier, and what is logged behind it, are no change.
            self._upto[group.number] = index + 1

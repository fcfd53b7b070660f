"""Periodic comparison of the replicas' rows, one partition after the other.

The leader logs a barrier, at which every replica hashes its rows. Then it logs its own hash, and every replica compares
that with its own, whenever it applies the entry. Finally the leader asks all replicas for their hashes and has wrong
replicas rebuilt (`replica_repair`). A partition that has not changed since its last comparison is skipped: reading all
its rows is expensive.
"""

from __future__ import annotations

import logging
from typing import Final

from evenkeel.errors import StoreError
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel_store.engine.group_state import Group
from evenkeel_store.maintenance.replica_repair import RECHECK_SECONDS, ReplicaRepairer
from evenkeel_store.serving.store_service import StoreService

__all__ = ["ReplicaComparer"]

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 5.0


class ReplicaComparer:
    """Compares the replicas of the partitions that this store leads."""

    def __init__(
        self, service: StoreService, repairer: ReplicaRepairer, *, seconds: float, clock: Clock | None = None
    ) -> None:
        self._service = service
        self._repairer = repairer
        self._seconds = seconds
        self._clock = clock or SystemClock()
        self._compared_at: dict[int, float] = {}
        """When each partition was last compared, or when this store began to lead it."""
        self._compared_index: dict[int, int] = {}
        """The last index that each comparison covered."""
        self._retry_at: dict[int, float] = {}
        """When to compare a partition again, even if nothing was written."""

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            await self._clock.sleep(_POLL_SECONDS)
            await self.compare_next()

    async def compare_next(self) -> None:
        """Compare the partition that has been due for longest, if any is due."""
        now, state_machine = self._clock.now(), self._service.state_machine
        led = state_machine.groups.led()
        self._clear_problems(set(led))
        self._compared_at = {number: self._compared_at.get(number, now) for number in led}
        self._retry_at = {number: at for number, at in self._retry_at.items() if number in self._compared_at}
        due = [number for number in led if now - self._compared_at[number] >= self._seconds]
        retries = [number for number, at in self._retry_at.items() if at <= now]
        for number in (*retries, *sorted(due, key=lambda number: self._compared_at[number])):
            self._compared_at[number] = now
            forced = self._retry_at.pop(number, None) is not None
            group = state_machine.engine.groups.get(number)
            if group is not None and group.metadata.schema is not None and (forced or self._has_changed(group)):
                await self._compare(group)
                return

    def _has_changed(self, group: Group) -> bool:
        return group.metadata.applied > self._compared_index.get(group.number, 0)

    def _clear_problems(self, led: set[int]) -> None:
        """Clear the findings about partitions that another store leads now: only the leader reports them."""
        for group in self._service.state_machine.groups.of_table():
            if group.comparison_problem and group.number not in led:
                self._service.set_comparison_problem(group, "")

    async def _compare(self, group: Group) -> None:
        try:
            index, taken = await self._service.take_hash(group)
            # The barrier and the comparison that follows it do not change rows.
            self._compared_index[group.number] = index + 1
            if await self._repairer.evaluate(group, index, taken):
                self._retry_at[group.number] = self._clock.now() + min(RECHECK_SECONDS, self._seconds)
        except StoreError as error:
            # The next pass, or another leader, will do it.
            log.info("replica comparison failed and will be retried: %s", error, extra=group.metadata.fields())

"""Periodic work of a leader: log new columns, log time, and what has expired.

The leader alone decides what has expired, by log time (`log_time`) or, before a partition keeps log time, by what it
has observed (`expiry_clock`). Replicas act on the entry alone, so they all expire the same things at the same index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakKeyDictionary

from evenkeel.errors import StoreError
from evenkeel.routing.routing_table import KnownTable
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel_store.engine.group_metadata import GroupMetadata
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.log_entries import Expire, LogTime, encode_entry
from evenkeel_store.engine.log_time import beginning, is_pending, tick_milliseconds
from evenkeel_store.maintenance.expiry_clock import ExpiryClock
from evenkeel_store.serving.store_service import StoreService

__all__ = ["LeaderMaintenance", "due"]

log = logging.getLogger(__name__)

_RESYNC_SECONDS: Final = 5.0
WRITER_SECONDS: Final = 86_400.0


def due(
    metadata: GroupMetadata, silent: Iterable[str], *, now: int, table: KnownTable | None, writers_before: int
) -> Expire | None:
    """Return what has expired at the log time `now`, or None."""
    pins = now if any(pin.expires <= now for pin in metadata.pins.values()) else 0
    writers = writers_before if any(True for _ in silent) else 0
    changes = 0
    if table is not None and metadata.changes:
        oldest = now - round(table.retention * 1000)
        # A stamp is the time at which its index was logged: everything up to it is at least as old.
        changes = max((index for at, index in metadata.stamps if at <= oldest), default=0)
    expire = Expire(pins, writers, changes if changes > metadata.forgotten else 0, now)
    return None if expire == Expire(at=now) else expire


class LeaderMaintenance:
    """Reconciles the groups that this store leads, periodically and when something changes."""

    def __init__(
        self,
        service: StoreService,
        *,
        clock: Clock | None = None,
        writer_seconds: float = WRITER_SECONDS,
        keeps_time: Callable[[], bool] = lambda: False,
    ) -> None:
        """`keeps_time` returns whether every store of the cluster reads `LogTime` entries."""
        self._service = service
        self._keeps_time = keeps_time
        self._clock = clock or SystemClock()
        self._writer_seconds = writer_seconds
        self._expiry_clocks: WeakKeyDictionary[Group, ExpiryClock] = WeakKeyDictionary()
        """Of the groups that this store leads and that do not keep log time yet."""
        self._queued: set[int] = set()
        self._wake = asyncio.Event()

    def enqueue(self, group: int) -> None:
        """Reconcile a group soon."""
        self._queued.add(group)
        self._wake.set()

    def table_changed(self, table: str) -> None:
        """Reconcile all partitions of a table soon."""
        for number in self._service.state_machine.groups.replicas():
            group = self._service.state_machine.engine.groups.get(number)
            if group is not None and group.metadata.table == table:
                self.enqueue(number)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            timer = asyncio.ensure_future(self._clock.sleep(_RESYNC_SECONDS))
            woken = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait({timer, woken}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                woken.cancel()
            self._wake.clear()
            queued, self._queued = self._queued, set()
            await self.reconcile(set(self._service.state_machine.groups.replicas()) if timer.done() else queued)

    async def reconcile(self, groups: Iterable[int]) -> None:
        """Do what is due in those of these groups that this store leads."""
        led = [number for number in groups if self._service.state_machine.groups.role(number).leader]
        found = [self._service.state_machine.engine.groups.get(number) for number in led]
        await asyncio.gather(*(self._reconcile_group(group) for group in found if group is not None))

    async def _reconcile_group(self, group: Group) -> None:
        try:
            known = self._service.routes.table(group.metadata.table)
            if known is not None and _needs_columns(group.metadata, known):
                await self._service.add_columns(group, known)
            if group.metadata.time:
                self._expiry_clocks.pop(group, None)
                entry = await self._expire(group, known) or self._tick(group)
            else:
                entry = (
                    await self._begin_time(group) if self._keeps_time() else await self._expire_observed(group, known)
                )
            if entry is not None:
                await self._service.propose(group, encode_entry(entry))
        except StoreError as error:
            # The next pass, or another leader, will do it.
            log.info("leader maintenance failed and will be retried: %s", error, extra=group.metadata.fields())

    async def _expire(self, group: Group, known: KnownTable | None) -> Expire | None:
        if not is_pending(group):
            return None
        now = self._service.stamp(group)
        before = now - round(self._writer_seconds * 1000)
        silent = await self._service.state_machine.queue.call(lambda _: group.tokens.silent_since(before))
        return due(group.metadata, silent, now=now, table=known, writers_before=before)

    def _tick(self, group: Group) -> LogTime | None:
        """Return an entry that advances log time, if something waits to expire and no write advances it."""
        now = self._service.stamp(group)
        return (
            LogTime(now) if now - group.metadata.time >= tick_milliseconds(group.number) and is_pending(group) else None
        )

    # Before log time is kept

    async def _begin_time(self, group: Group) -> LogTime:
        await self._service.catch_up(group)
        clock = await self._observe(group)
        return LogTime(beginning(clock.bounds(), reading=self._service.stamp(group)))

    async def _expire_observed(self, group: Group, known: KnownTable | None) -> Expire | None:
        if not is_pending(group):
            self._expiry_clocks.pop(group, None)
            return None
        if self._due(group, known, await self._observe(group)) is None:
            return None
        # Entries of other leaders that are not applied here yet may have lower stamps.
        await self._service.catch_up(group)
        return self._due(group, known, await self._observe(group))

    def _due(self, group: Group, known: KnownTable | None, clock: ExpiryClock) -> Expire | None:
        retention = None if known is None else known.retention
        return clock.due(group.metadata, writer_seconds=self._writer_seconds, retention=retention)

    async def _observe(self, group: Group) -> ExpiryClock:
        clock = self._expiry_clocks.setdefault(group, ExpiryClock())
        metadata, uses = await self._service.state_machine.queue.call(
            lambda _: (group.metadata, group.tokens.last_uses())
        )
        clock.observe(metadata, uses, now=self._clock.now())
        return clock


def _needs_columns(metadata: GroupMetadata, known: KnownTable) -> bool:
    if metadata.schema is None:
        return True
    return known.schema.extends(metadata.schema) and (known.schema, known.changes) != (
        metadata.schema,
        metadata.changes,
    )

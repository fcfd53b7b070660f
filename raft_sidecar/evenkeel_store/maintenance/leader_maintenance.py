"""What a leader does of its own accord: log columns that were added, keep log time, and let go what has expired.

What has expired is decided by log time (`logtime`), before that by what the leader has seen (`ages`), and by the leader
alone. What replicas then do rests on the entry, so that they all do it at the same index.
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

_EVERY_SECONDS: Final = 5.0
WRITER_SECONDS: Final = 86_400.0


def due(
    metadata: GroupMetadata, silent: Iterable[str], *, now: int, table: KnownTable | None, writers_before: int
) -> Expire | None:
    """What has expired by now, a log time; None where nothing has."""
    pins = now if any(pin.expires <= now for pin in metadata.pins.values()) else 0
    writers = writers_before if any(True for _ in silent) else 0
    changes = 0
    if table is not None and metadata.changes:
        oldest = now - round(table.retention * 1000)
        # A stamp says when its index was logged: everything up to it is at least as old.
        changes = max((index for at, index in metadata.stamps if at <= oldest), default=0)
    expire = Expire(pins, writers, changes if changes > metadata.forgotten else 0, now)
    return None if expire == Expire(at=now) else expire


class LeaderMaintenance:
    """Looks after the groups that are led here, now and then and when something changes."""

    def __init__(
        self,
        service: StoreService,
        *,
        clock: Clock | None = None,
        writer_seconds: float = WRITER_SECONDS,
        keeps_time: Callable[[], bool] = lambda: False,
    ) -> None:
        """`keeps_time` says whether every store knows `LogTime` entries."""
        self._service = service
        self._keeps_time = keeps_time
        self._clock = clock or SystemClock()
        self._writer_seconds = writer_seconds
        self._ages: WeakKeyDictionary[Group, ExpiryClock] = WeakKeyDictionary()
        """Of groups that are led here and do not keep log time yet."""
        self._scheduled: set[int] = set()
        self._wake = asyncio.Event()

    def schedule(self, group: int) -> None:
        """Look at a group soon."""
        self._scheduled.add(group)
        self._wake.set()

    def table_changed(self, table: str) -> None:
        """Look at all partitions of a table soon."""
        for number in self._service.state_machine.open_groups():
            group = self._service.state_machine.engine.groups.get(number)
            if group is not None and group.metadata.table == table:
                self.schedule(number)

    async def run(self) -> None:
        """Keep house until cancelled."""
        while True:
            timer = asyncio.ensure_future(self._clock.sleep(_EVERY_SECONDS))
            woken = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait({timer, woken}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                woken.cancel()
            self._wake.clear()
            stirred, self._scheduled = self._scheduled, set()
            await self.look(set(self._service.state_machine.open_groups()) if timer.done() else stirred)

    async def look(self, groups: Iterable[int]) -> None:
        """Do what is due in these groups."""
        led = [number for number in groups if self._service.state_machine.role_of(number).leader]
        found = [self._service.state_machine.engine.groups.get(number) for number in led]
        await asyncio.gather(*(self._look(group) for group in found if group is not None))

    async def _look(self, group: Group) -> None:
        try:
            known = self._service.routes.table(group.metadata.table)
            if known is not None and _wants_columns(group.metadata, known):
                await self._service.add_columns(group, known)
            if group.metadata.time:
                self._ages.pop(group, None)
                entry = await self._expire(group, known) or self._tick(group)
            else:
                entry = await self._begin_time(group) if self._keeps_time() else await self._expire_seen(group, known)
            if entry is not None:
                await self._service.propose(group, encode_entry(entry))
        except StoreError as error:
            # Another leader, or the next look, will do it.
            log.info("housekeeping is put off: %s", error, extra=group.metadata.fields())

    async def _expire(self, group: Group, known: KnownTable | None) -> Expire | None:
        if not is_pending(group):
            return None
        now = self._service.stamp(group)
        before = now - round(self._writer_seconds * 1000)
        silent = await self._service.state_machine.look(lambda _: group.tokens.silent_since(before))
        return due(group.metadata, silent, now=now, table=known, writers_before=before)

    def _tick(self, group: Group) -> LogTime | None:
        """Move log time while something waits to expire and nobody writes."""
        now = self._service.stamp(group)
        return (
            LogTime(now) if now - group.metadata.time >= tick_milliseconds(group.number) and is_pending(group) else None
        )

    # Before log time is kept

    async def _begin_time(self, group: Group) -> LogTime:
        await self._service.catch_up(group)
        ages = await self._look_at_ages(group)
        return LogTime(beginning(ages.bounds(), reading=self._service.stamp(group)))

    async def _expire_seen(self, group: Group, known: KnownTable | None) -> Expire | None:
        if not is_pending(group):
            self._ages.pop(group, None)
            return None
        if self._due(group, known, await self._look_at_ages(group)) is None:
            return None
        # What other leaders logged may have lower stamps than what is applied here.
        await self._service.catch_up(group)
        return self._due(group, known, await self._look_at_ages(group))

    def _due(self, group: Group, known: KnownTable | None, ages: ExpiryClock) -> Expire | None:
        retention = None if known is None else known.retention
        return ages.due(group.metadata, writer_seconds=self._writer_seconds, retention=retention)

    async def _look_at_ages(self, group: Group) -> ExpiryClock:
        ages = self._ages.setdefault(group, ExpiryClock())
        metadata, uses = await self._service.state_machine.look(lambda _: (group.metadata, group.tokens.last_uses()))
        ages.look(metadata, uses, now=self._clock.now())
        return ages


def _wants_columns(metadata: GroupMetadata, known: KnownTable) -> bool:
    if metadata.schema is None:
        return True
    return known.schema.extends(metadata.schema) and (known.schema, known.changes) != (
        metadata.schema,
        metadata.changes,
    )

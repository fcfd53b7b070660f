"""What a leader does of its own accord: log columns that were added, and let go what has expired.

Times come from entries (whoever proposed them had a clock) and are compared with the leader's clock here alone. What
replicas then do rests on the entry, so that they all do it at the same index, whatever their own clocks say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from evenkeel.errors import StoreError
from evenkeel.metastore.clock import Clock, SystemClock
from evenkeel.routing.routes import KnownTable
from evenkeel_store.entries import Expire, encode_entry
from evenkeel_store.groups import Group
from evenkeel_store.heads import Head
from evenkeel_store.service import Service

__all__ = ["Housekeeper", "due"]

log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 5.0
WRITER_SECONDS: Final = 86_400.0


def due(head: Head, silent: Iterable[str], *, now: int, table: KnownTable | None, writers_before: int) -> Expire | None:
    """What has expired by now; None where nothing has."""
    pins = now if any(pin.expires <= now for pin in head.pins.values()) else 0
    writers = writers_before if any(True for _ in silent) else 0
    changes = 0
    if table is not None and head.changes:
        oldest = now - round(table.retention * 1000)
        # A stamp says when its index was logged: everything up to it is at least as old.
        changes = max((index for at, index in head.stamps if at <= oldest), default=0)
    expire = Expire(pins, writers, changes if changes > head.forgotten else 0)
    return None if expire == Expire() else expire


class Housekeeper:
    """Looks after the groups that are led here, now and then and when something changes."""

    def __init__(self, service: Service, *, clock: Clock | None = None, writer_seconds: float = WRITER_SECONDS) -> None:
        self._service = service
        self._clock = clock or SystemClock()
        self._writer_seconds = writer_seconds
        self._stirred: set[int] = set()
        self._wake = asyncio.Event()

    def stir(self, group: int) -> None:
        """Look at a group soon."""
        self._stirred.add(group)
        self._wake.set()

    def table_changed(self, table: str) -> None:
        """Look at all partitions of a table soon."""
        for number in self._service.machine.open_groups():
            group = self._service.machine.engine.groups.get(number)
            if group is not None and group.head.table == table:
                self.stir(number)

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
            stirred, self._stirred = self._stirred, set()
            await self.look(set(self._service.machine.open_groups()) if timer.done() else stirred)

    async def look(self, groups: Iterable[int]) -> None:
        """Do what is due in these groups."""
        led = [number for number in groups if self._service.machine.role_of(number).leader]
        found = [self._service.machine.engine.groups.get(number) for number in led]
        await asyncio.gather(*(self._look(group) for group in found if group is not None))

    async def _look(self, group: Group) -> None:
        try:
            known = self._service.routes.table(group.head.table)
            if known is not None and _wants_columns(group.head, known):
                await self._service.add_columns(group, known)
            before = self._service.now() - round(self._writer_seconds * 1000)
            silent = await self._service.machine.look(lambda _: group.tokens.silent_since(before))
            expire = due(group.head, silent, now=self._service.now(), table=known, writers_before=before)
            if expire is not None:
                await self._service.propose(group, encode_entry(expire))
        except StoreError as error:
            # Another leader, or the next look, will do it.
            log.info("housekeeping is put off: %s", error, extra=group.head.fields())


def _wants_columns(head: Head, known: KnownTable) -> bool:
    if head.schema is None:
        return True
    return known.schema.extends(head.schema) and (known.schema, known.changes) != (head.schema, head.changes)

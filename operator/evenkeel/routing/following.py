"""A routing table that follows the metastore, through whatever happens to it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from evenkeel.errors import MalformedRecordError, MetastoreError
from evenkeel.metastore.api import KeyValue, Metastore
from evenkeel.metastore.clock import Clock, SystemClock
from evenkeel.routing.routes import RoutingTable
from evenkeel.wire.backoff import Backoff

__all__ = ["follow"]

log = logging.getLogger(__name__)


async def follow(
    metastore: Metastore,
    routes: RoutingTable,
    *,
    changed: Callable[[str], None] = lambda table: None,
    clock: Clock | None = None,
) -> None:
    """Keep it current until cancelled; `changed` is told of every table that a key speaks of."""
    follower = _Follower(metastore, routes, changed, clock or SystemClock())
    async with asyncio.TaskGroup() as tasks:
        for prefix in routes.prefixes():
            tasks.create_task(follower.run(prefix))


class _Follower:
    def __init__(
        self, metastore: Metastore, routes: RoutingTable, changed: Callable[[str], None], clock: Clock
    ) -> None:
        self._metastore = metastore
        self._routes = routes
        self._changed = changed
        self._clock = clock

    async def run(self, prefix: str) -> None:
        backoff = Backoff(clock=self._clock, chance=random.Random(), longest=5.0)
        known: set[str] = set()
        while True:
            try:
                await self._follow(prefix, known, backoff)
            except MetastoreError as error:
                log.warning("routes under %s are not followed: %s", prefix, error)
                await backoff.wait()

    async def _follow(self, prefix: str, known: set[str], backoff: Backoff) -> None:
        snapshot = await self._metastore.range(prefix)
        backoff.reset()
        found = {kv.key for kv in snapshot.kvs}
        for key in sorted(known - found):
            self._remove(key)
        known.clear()
        known |= found
        for kv in snapshot.kvs:
            self._put(kv)
        async for batch in self._metastore.watch(prefix, after=snapshot):
            for event in batch.events:
                if event.kv is None:
                    known.discard(event.key)
                    self._remove(event.key)
                else:
                    known.add(event.key)
                    self._put(event.kv)

    def _put(self, kv: KeyValue) -> None:
        try:
            table = self._routes.put(kv.key, kv.value)
        except MalformedRecordError as error:
            log.error("%s", error)
        else:
            self._tell(table)

    def _remove(self, key: str) -> None:
        try:
            table = self._routes.remove(key)
        except MalformedRecordError as error:
            log.error("%s", error)
        else:
            self._tell(table)

    def _tell(self, table: str) -> None:
        if table:
            self._changed(table)

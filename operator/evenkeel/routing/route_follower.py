"""A routing table that follows the metastore, through whatever happens to it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from evenkeel.errors import ClusterMismatchError, MalformedRecordError, MetastoreError
from evenkeel.metastore.metastore_api import KeyValue, Metastore
from evenkeel.protocol.records import Adoption, decode
from evenkeel.routing.routing_table import RoutingTable
from evenkeel.runtime.backoff import Backoff
from evenkeel.runtime.clock import Clock, SystemClock

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
        self._cluster = 0
        self._newest = 0
        self._doubted = False
        """Whether another metastore has answered than before."""

    async def run(self, prefix: str) -> None:
        backoff = Backoff(clock=self._clock, rng=random.Random(), longest=5.0)
        known: set[str] = set()
        while True:
            try:
                await self._follow(prefix, known, backoff)
            except ClusterMismatchError as error:
                self._doubted = True
                await self._metastore.forget()
                log.warning("routes under %s stay as they were: %s", prefix, error)
                await backoff.wait()
            except MetastoreError as error:
                log.warning("routes under %s are not followed: %s", prefix, error)
                await backoff.wait()

    async def _follow(self, prefix: str, known: set[str], backoff: Backoff) -> None:
        snapshot = await self._metastore.range(prefix)
        await self._check_identity(snapshot.revision)
        backoff.reset()
        found = {kv.key for kv in snapshot.kvs}
        for key in sorted(known - found):
            self._remove(key)
        known.clear()
        known |= found
        for kv in snapshot.kvs:
            self._put(kv)
        async for batch in self._metastore.watch(prefix, after=snapshot):
            self._newest = max(self._newest, batch.revision)
            for event in batch.events:
                if event.kv is None:
                    known.discard(event.key)
                    self._remove(event.key)
                else:
                    known.add(event.key)
                    self._put(event.kv)

    async def _check_identity(self, revision: int) -> None:
        """Believe another metastore only once a user has had it adopted: routes of before are better than none."""
        cluster = await self._metastore.cluster_id()
        same = cluster == self._cluster and revision >= self._newest
        if self._doubted and not same and not await self._adopted(cluster):
            raise ClusterMismatchError(f"etcd cluster {cluster:x} at revision {revision} was not adopted")
        self._doubted, self._cluster = False, cluster
        self._newest = revision if not same else max(self._newest, revision)

    async def _adopted(self, cluster: int) -> bool:
        kv = await self._metastore.get(self._routes.keys.adoption)
        try:
            return kv is not None and int(decode(Adoption, kv.value, key=kv.key).cluster, 16) == cluster
        except (MalformedRecordError, ValueError):
            return False

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

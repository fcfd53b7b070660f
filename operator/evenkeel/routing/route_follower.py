"""Keeps a routing table current by watching the metastore, across outages and replacements of etcd."""

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
    """Keep the routes current until cancelled; `changed` is called with the table of each changed key."""
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
        self._cluster_id = 0
        self._newest_revision = 0
        self._identity_uncertain = False
        """Whether another etcd cluster answered than before."""

    async def run(self, prefix: str) -> None:
        backoff = Backoff(clock=self._clock, rng=random.Random(), longest=5.0)
        known: set[str] = set()
        while True:
            try:
                await self._follow(prefix, known, backoff)
            except ClusterMismatchError as error:
                self._identity_uncertain = True
                await self._metastore.forget()
                log.warning("keeping the last known routes under %s: %s", prefix, error)
                await backoff.wait()
            except MetastoreError as error:
                log.warning("cannot watch the routes under %s, retrying: %s", prefix, error)
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
            self._newest_revision = max(self._newest_revision, batch.revision)
            for event in batch.events:
                if event.kv is None:
                    known.discard(event.key)
                    self._remove(event.key)
                else:
                    known.add(event.key)
                    self._put(event.kv)

    async def _check_identity(self, revision: int) -> None:
        """Accept another etcd cluster only after a user has adopted it; until then the old routes stay."""
        cluster = await self._metastore.cluster_id()
        same = cluster == self._cluster_id and revision >= self._newest_revision
        if self._identity_uncertain and not same and not await self._adopted(cluster):
            raise ClusterMismatchError(f"etcd cluster {cluster:x} at revision {revision} is not adopted")
        self._identity_uncertain, self._cluster_id = False, cluster
        self._newest_revision = revision if not same else max(self._newest_revision, revision)

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
            self._notify(table)

    def _remove(self, key: str) -> None:
        try:
            table = self._routes.remove(key)
        except MalformedRecordError as error:
            log.error("%s", error)
        else:
            self._notify(table)

    def _notify(self, table: str) -> None:
        if table:
            self._changed(table)

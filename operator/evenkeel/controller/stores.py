"""One look at the stores: who is lost, given up or emptied, and what the StoreCluster's status says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from evenkeel.controller.ground import Ground
from evenkeel.controller.resources import Resources
from evenkeel.controller.statuses import StatusWriter
from evenkeel.metastore.api import KeyValue
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.records import encode
from evenkeel.reconcile.cluster_status import cluster_status
from evenkeel.reconcile.stores import StoreWish, asked_to_drain, judge_stores, leaving, next_judgement, read_stores
from evenkeel.reconcile.wish import table_key

__all__ = ["StoreKeeper"]

AWAY_SECONDS: Final = 60.0
"""Who did not get to look for so long does not count stores as lost for that time."""


class StoreKeeper:
    """Looks at stores."""

    def __init__(self, resources: Resources, ground: Ground, statuses: StatusWriter) -> None:
        self._resources = resources
        self._ground = ground
        self._statuses = statuses
        self._looked = float("-inf")
        self.draining = False
        """Whether stores are being emptied: what partitions do is worth a look."""

    async def look(self, held_up: Iterable[str] = ()) -> float:
        """Judge and describe; returns in how many seconds to look again, or 0."""
        cluster, tables = await self._resources.store_cluster(), await self._resources.tables()
        kvs = await self._kvs()
        held = await self._held(cluster, kvs)
        lost_after = {table_key(table): table.spec.movement.lost_after.seconds for table in tables}
        wish = StoreWish(cluster=cluster, holders=held.keys(), lost_after=lost_after)
        await self._judge(kvs, wish)
        kvs = await self._kvs()
        due = next_judgement(kvs, wish, keys=self._ground.keys)
        again = [max(0.001, due - self._ground.today())] if due is not None else []
        if cluster is not None:
            status = cluster_status(
                cluster,
                kvs,
                loads=self._ground.loads(),
                held=held,
                held_up="; ".join(held_up),
                keys=self._ground.keys,
                tables=len(tables),
                now=self._ground.now(),
            )
            again.append(await self._statuses.write(cluster, status))
        return min(filter(None, again), default=0.0)

    async def _judge(self, kvs: Sequence[KeyValue], wish: StoreWish) -> None:
        began, ground = self._ground.clock.now(), self._ground
        anew = began - self._looked > AWAY_SECONDS
        epoch = ground.held.compare
        txns = judge_stores(kvs, wish, keys=ground.keys, now=ground.today(), anew=anew, epoch=epoch)
        if await ground.commit_all(txns):
            self._looked = began

    async def _kvs(self) -> Sequence[KeyValue]:
        return (await self._ground.metastore.range(self._ground.keys.all_stores())).kvs

    async def _held(self, cluster: StoreCluster | None, kvs: Iterable[KeyValue]) -> Counter[str]:
        """How many partitions name each of the stores that are to be emptied."""
        known = read_stores(kvs, self._ground.keys).names()
        emptied = known & (leaving(cluster, known) | asked_to_drain(cluster))
        self.draining = bool(emptied)
        if not emptied:
            return Counter()
        found = await self._ground.metastore.range(self._ground.keys.assignments())
        words = {name: encode(name) for name in emptied}
        named = {
            (name, kv.key.partition("/")[2].partition("/")[2])
            for kv in found.kvs
            for name, word in words.items()
            if word in kv.value
        }
        return Counter(name for name, _ in named)

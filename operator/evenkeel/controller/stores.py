"""One look at the stores: who is lost, given up or emptied, and what the StoreCluster's status says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from evenkeel.controller.ground import Ground
from evenkeel.controller.resources import Resources
from evenkeel.controller.statuses import StatusWriter
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.records import encode
from evenkeel.reconcile.cluster_status import cluster_status
from evenkeel.reconcile.known import KnownStores
from evenkeel.reconcile.stores import StoreWish, asked_to_drain, judge_stores, leaving, next_judgement
from evenkeel.reconcile.wish import table_key

__all__ = ["StoreKeeper"]

AWAY_SECONDS: Final = 60.0
"""Who did not get to look for so long does not count stores as lost for that time."""


class _Judged(NamedTuple):
    """What a judgement rested on that time does not change: while no store is lost, nothing else does either."""

    known: KnownStores
    cluster: StoreCluster | None

    def still(self, known: KnownStores, cluster: StoreCluster | None) -> bool:
        """Whether nothing has changed."""
        if known is not self.known or cluster is None or self.cluster is None:
            return False
        return cluster.spec is self.cluster.spec and asked_to_drain(cluster) == asked_to_drain(self.cluster)


class StoreKeeper:
    """Looks at stores."""

    def __init__(self, resources: Resources, ground: Ground, statuses: StatusWriter) -> None:
        self._resources = resources
        self._ground = ground
        self._statuses = statuses
        self._looked = float("-inf")
        self._judged: _Judged | None = None
        self.draining = False
        """Whether stores are being emptied: what partitions do is worth a look."""

    async def look(self, held_up: Iterable[str] = ()) -> float:
        """Judge and describe; returns in how many seconds to look again, or 0."""
        await self._ground.begin()
        cluster, tables = await self._resources.store_cluster(), await self._resources.tables()
        known = await self._ground.stores()
        held = await self._held(cluster, known)
        lost_after = {table_key(table): table.spec.movement.lost_after.seconds for table in tables}
        wish = StoreWish(cluster=cluster, holders=held.keys(), lost_after=lost_after)
        await self._judge(known, wish)
        known = await self._ground.stores()
        due = next_judgement(known, wish)
        again = [max(0.001, due - self._ground.today())] if due is not None else []
        if cluster is not None:
            status = cluster_status(
                cluster,
                known,
                loads=self._ground.reports.all(),
                held=held,
                held_up="; ".join(held_up),
                tables=len(tables),
                now=self._ground.now(),
            )
            again.append(await self._statuses.write(cluster, status))
        return min(filter(None, again), default=0.0)

    async def _judge(self, known: KnownStores, wish: StoreWish) -> None:
        began, ground = self._ground.clock.now(), self._ground
        if not known.lost and self._judged is not None and self._judged.still(known, wish.cluster):
            self._looked = began
            return
        anew = began - self._looked > AWAY_SECONDS
        epoch = ground.held.compare
        txns = tuple(judge_stores(known, wish, keys=ground.keys, now=ground.today(), anew=anew, epoch=epoch))
        if await ground.commit_all(txns):
            self._looked = began
            self._judged = None if txns else _Judged(known, wish.cluster)

    async def _held(self, cluster: StoreCluster | None, known: KnownStores) -> Counter[str]:
        """How many partitions name each of the stores that are to be emptied."""
        emptied = known.names & (leaving(cluster, known.names) | asked_to_drain(cluster))
        self.draining = bool(emptied)
        if not emptied:
            return Counter()
        words = {name: encode(name) for name in emptied}
        named = {
            (name, kv.key.partition("/")[2].partition("/")[2])
            for kv in await self._ground.assignments()
            for name, word in words.items()
            if word in kv.value
        }
        return Counter(name for name, _ in named)

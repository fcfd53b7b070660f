"""One look at the stores: who is lost, given up or emptied, and what the StoreCluster's status says of it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from evenkeel.controller.dropped import DroppedKeeper
from evenkeel.controller.ground import Ground
from evenkeel.controller.resources import Resources
from evenkeel.controller.statuses import StatusWriter
from evenkeel.controller.tables import cluster_paused
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.records import encode
from evenkeel.reconcile.adoption import open_txn
from evenkeel.reconcile.cluster_status import Held, cluster_status
from evenkeel.reconcile.cluster_version import Versions, holders, raise_version
from evenkeel.reconcile.known import KnownStores
from evenkeel.reconcile.partitions import Trouble
from evenkeel.reconcile.stores import StoreWish, asked_to_drain, judge_stores, leaving, next_judgement, publish_settings
from evenkeel.reconcile.table import to_be_adopted
from evenkeel.reconcile.wish import wish_of
from evenkeel.versions import SUPPORTED

__all__ = ["StoreKeeper"]

log = logging.getLogger(__name__)

ADOPTING_SECONDS: Final = 1.0
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

    async def look(self, dropped: DroppedKeeper, held_up: Mapping[str, Trouble]) -> float:
        """Judge and describe; returns in how many seconds to look again, or 0.

        `held_up` says by the key of a table why it cannot be placed as wanted.
        """
        await self._ground.begin()
        cluster, tables = await self._resources.store_cluster(), await self._resources.tables()
        known = await self._ground.stores()
        held = await self._held(cluster, known)
        lost_after = {
            await self._ground.key_of(table): table.spec.movement.lost_after.seconds for table in tables
        } | dropped.lost_after()
        wish = StoreWish(cluster=cluster, holders=held.keys(), lost_after=lost_after)
        await self._judge(known, wish)
        known = await self._ground.stores()
        versions = await self._raise_version(known, cluster)
        due = next_judgement(known, wish)
        again = [max(0.001, due - self._ground.steady())] if due is not None else []
        if cluster is not None:
            await self._publish_settings(cluster)
            left = await self._left_to_adopt(cluster, dropped, tables)
            if self._ground.adopting:
                again.append(ADOPTING_SECONDS)
            status = cluster_status(
                cluster,
                known,
                loads=self._ground.reports.all(),
                held=held,
                held_up=held_up,
                tables=len(tables),
                versions=versions,
                dropped=dropped.described(),
                metastore=self._ground.seen,
                left_to_adopt=left,
                now=self._ground.now(),
            )
            again.append(await self._statuses.write(cluster, status))
        return min(filter(None, again), default=0.0)

    async def _left_to_adopt(self, cluster: StoreCluster, dropped: DroppedKeeper, tables: Sequence[Table]) -> int:
        """While a metastore is adopted: let stores follow it once every table is taken over; how many are not."""
        ground, request = self._ground, self._ground.adopting
        if not request or ground.seen is None:
            return 0
        left = await dropped.adopt(cluster, tables, request=request)
        for table in tables:
            snapshot, wish = await ground.snapshot(await ground.key_of(table)), wish_of(table)
            left += to_be_adopted(snapshot, wish.newest_plan, request)
        if not left:
            log.info("etcd cluster %s is adopted: stores may follow it", ground.seen.cluster)
            await ground.commit_all([open_txn(request, ground.seen, keys=ground.keys, epoch=ground.held.compare)])
        return left

    async def _publish_settings(self, cluster: StoreCluster) -> None:
        """Let running stores know of throttles and thresholds."""
        ground, keys = self._ground, self._ground.keys
        txn = publish_settings(cluster, await ground.get(keys.settings), keys=keys, epoch=ground.held.compare)
        if txn is not None:
            await ground.commit_all([txn])

    async def _judge(self, known: KnownStores, wish: StoreWish) -> None:
        began, ground = self._ground.clock.now(), self._ground
        if not known.lost and self._judged is not None and self._judged.still(known, wish.cluster):
            self._looked = began
            return
        anew = began - self._looked > AWAY_SECONDS
        epoch = ground.held.compare
        txns = tuple(judge_stores(known, wish, keys=ground.keys, now=ground.steady(), anew=anew, epoch=epoch))
        if await ground.commit_all(txns):
            self._looked = began
            self._judged = None if txns else _Judged(known, wish.cluster)

    async def _raise_version(self, known: KnownStores, cluster: StoreCluster | None) -> Versions:
        """Raise the cluster version where every store supports a newer one; returns what is then."""
        ground = self._ground
        kv, version = await ground.version(), await ground.check_version()
        holding = frozenset[str]()
        if known.lost and version < SUPPORTED.newest:
            holding = known.lost & holders(await ground.assignments(), ground.keys)
        versions = Versions.of(version, known, cluster, holding=holding)
        if cluster is not None and cluster_paused(cluster):
            return versions
        txn = raise_version(versions, kv, known, keys=ground.keys, epoch=ground.held.compare)
        if txn is None or not await ground.commit_all((txn,)):
            return versions
        log.info("the cluster version rises from %d to %d", version, versions.target)
        return msgspec.structs.replace(versions, version=versions.target)

    async def _held(self, cluster: StoreCluster | None, known: KnownStores) -> dict[str, Held]:
        """What partitions name on each of the stores that are to be emptied."""
        emptied = known.names & (leaving(cluster, known.names) | asked_to_drain(cluster))
        self.draining = bool(emptied)
        if not emptied:
            return {}
        words = {name: encode(name) for name in emptied}
        named: dict[str, set[tuple[str, int]]] = {}
        for kv in await self._ground.assignments():
            for name in (name for name, word in words.items() if word in kv.value):
                *_, table, partition = kv.key.split("/")
                named.setdefault(name, set()).add((table, int(partition) if partition.isdecimal() else -1))
        return {name: self._size_of(partitions) for name, partitions in named.items()}

    def _size_of(self, partitions: Collection[tuple[str, int]]) -> Held:
        sizes = {table: self._ground.reports.sizes(table) for table in {table for table, _ in partitions}}
        found = [sizes[table][partition] for table, partition in partitions if partition in sizes[table]]
        whole = sum(found) if len(found) == len(partitions) else None
        return Held(len(partitions), whole, frozenset(sizes))

"""One look at the stores: who is lost, given up or emptied, and what the StoreCluster's status says of it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from evenkeel.controller.controller_context import ControllerContext
from evenkeel.controller.dropped_table_reconciler import DroppedTableReconciler
from evenkeel.controller.resources_api import Resources
from evenkeel.controller.status_writer import StatusWriter
from evenkeel.controller.table_reconciler import cluster_paused
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.records import encode
from evenkeel.reconcile.cluster_status import Held, cluster_status
from evenkeel.reconcile.cluster_version import Versions, holders, raise_version
from evenkeel.reconcile.desired_table import desired_table
from evenkeel.reconcile.known_stores import KnownStores
from evenkeel.reconcile.metastore_adoption import open_txn
from evenkeel.reconcile.partition_status import Problem
from evenkeel.reconcile.store_states import (
    StoreWish,
    asked_to_drain,
    judge_stores,
    leaving,
    next_judgement,
    publish_settings,
)
from evenkeel.reconcile.table_steps import to_be_adopted
from evenkeel.versions import SUPPORTED

__all__ = ["StoreReconciler"]

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


class StoreReconciler:
    """Looks at stores."""

    def __init__(self, resources: Resources, context: ControllerContext, statuses: StatusWriter) -> None:
        self._resources = resources
        self._context = context
        self._statuses = statuses
        self._looked = float("-inf")
        self._judged: _Judged | None = None
        self.draining = False
        """Whether stores are being emptied: what partitions do is worth a look."""

    async def look(self, dropped: DroppedTableReconciler, held_up: Mapping[str, Problem]) -> float:
        """Judge and describe; returns in how many seconds to look again, or 0.

        `held_up` says by the key of a table why it cannot be placed as wanted.
        """
        await self._context.begin()
        cluster, tables = await self._resources.store_cluster(), await self._resources.tables()
        known = await self._context.stores()
        held = await self._held(cluster, known)
        lost_after = {
            await self._context.key_of(table): table.spec.movement.lost_after.seconds for table in tables
        } | dropped.lost_after()
        desired = StoreWish(cluster=cluster, holders=held.keys(), lost_after=lost_after)
        await self._judge(known, desired)
        known = await self._context.stores()
        versions = await self._raise_version(known, cluster)
        due = next_judgement(known, desired)
        again = [max(0.001, due - self._context.steady())] if due is not None else []
        if cluster is not None:
            await self._publish_settings(cluster)
            left = await self._left_to_adopt(cluster, dropped, tables)
            if self._context.adopting:
                again.append(ADOPTING_SECONDS)
            status = cluster_status(
                cluster,
                known,
                loads=self._context.reports.all(),
                held=held,
                held_up=held_up,
                tables=len(tables),
                versions=versions,
                dropped=dropped.described(),
                metastore=self._context.seen,
                left_to_adopt=left,
                now=self._context.now(),
            )
            again.append(await self._statuses.write(cluster, status))
        return min(filter(None, again), default=0.0)

    async def _left_to_adopt(
        self, cluster: StoreCluster, dropped: DroppedTableReconciler, tables: Sequence[Table]
    ) -> int:
        """While a metastore is adopted: let stores follow it once every table is taken over; how many are not."""
        context, request = self._context, self._context.adopting
        if not request or context.seen is None:
            return 0
        left = await dropped.adopt(cluster, tables, request=request)
        for table in tables:
            snapshot, desired = await context.snapshot(await context.key_of(table)), desired_table(table)
            left += to_be_adopted(snapshot, desired.newest_plan, request)
        if not left:
            log.info("etcd cluster %s is adopted: stores may follow it", context.seen.cluster)
            await context.commit_all([open_txn(request, context.seen, keys=context.keys, epoch=context.held.compare)])
        return left

    async def _publish_settings(self, cluster: StoreCluster) -> None:
        """Let running stores know of throttles and thresholds."""
        context, keys = self._context, self._context.keys
        txn = publish_settings(cluster, await context.get(keys.settings), keys=keys, epoch=context.held.compare)
        if txn is not None:
            await context.commit_all([txn])

    async def _judge(self, known: KnownStores, desired: StoreWish) -> None:
        began, context = self._context.clock.now(), self._context
        if not known.lost and self._judged is not None and self._judged.still(known, desired.cluster):
            self._looked = began
            return
        anew = began - self._looked > AWAY_SECONDS
        epoch = context.held.compare
        txns = tuple(judge_stores(known, desired, keys=context.keys, now=context.steady(), anew=anew, epoch=epoch))
        if await context.commit_all(txns):
            self._looked = began
            self._judged = None if txns else _Judged(known, desired.cluster)

    async def _raise_version(self, known: KnownStores, cluster: StoreCluster | None) -> Versions:
        """Raise the cluster version where every store supports a newer one; returns what is then."""
        context = self._context
        kv, version = await context.version(), await context.check_version()
        holding = frozenset[str]()
        if known.lost and version < SUPPORTED.newest:
            holding = known.lost & holders(await context.assignments(), context.keys)
        versions = Versions.of(version, known, cluster, holding=holding)
        if cluster is not None and cluster_paused(cluster):
            return versions
        txn = raise_version(versions, kv, known, keys=context.keys, epoch=context.held.compare)
        if txn is None or not await context.commit_all((txn,)):
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
        for kv in await self._context.assignments():
            for name in (name for name, word in words.items() if word in kv.value):
                *_, table, partition = kv.key.split("/")
                named.setdefault(name, set()).add((table, int(partition) if partition.isdecimal() else -1))
        return {name: self._size_of(partitions) for name, partitions in named.items()}

    def _size_of(self, partitions: Collection[tuple[str, int]]) -> Held:
        sizes = {table: self._context.reports.sizes(table) for table in {table for table, _ in partitions}}
        found = [sizes[table][partition] for table, partition in partitions if partition in sizes[table]]
        whole = sum(found) if len(found) == len(partitions) else None
        return Held(len(partitions), whole, frozenset(sizes))

"""Reconciles the stores: which are lost, replaced or drained, and the StoreCluster's status."""

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
from evenkeel.reconcile.lost_stores import next_replacement
from evenkeel.reconcile.metastore_adoption import admit_stores_txn
from evenkeel.reconcile.readiness import Problem
from evenkeel.reconcile.store_states import (
    DesiredStores,
    asked_to_drain,
    decide_store_states,
    leaving,
    publish_settings,
)
from evenkeel.reconcile.table_steps import to_be_adopted
from evenkeel.versions import SUPPORTED

__all__ = ["StoreReconciler"]

log = logging.getLogger(__name__)

ADOPTING_SECONDS: Final = 1.0
UNCHECKED_SECONDS: Final = 60.0
"""A controller that could not check the stores for so long restarts the delays of lost stores."""


class _Decided(NamedTuple):
    """The inputs of the last decision about stores; it holds while they are the same and no store is lost."""

    known: KnownStores
    cluster: StoreCluster | None

    def holds_for(self, known: KnownStores, cluster: StoreCluster | None) -> bool:
        """Whether the inputs are the same."""
        if known is not self.known or cluster is None or self.cluster is None:
            return False
        return cluster.spec is self.cluster.spec and asked_to_drain(cluster) == asked_to_drain(self.cluster)


class StoreReconciler:
    """Reconciles stores."""

    def __init__(self, resources: Resources, context: ControllerContext, statuses: StatusWriter) -> None:
        self._resources = resources
        self._context = context
        self._statuses = statuses
        self._checked = float("-inf")
        self._decided: _Decided | None = None
        self.draining = False
        """Whether stores are draining: then changes of partitions change the StoreCluster's status."""

    async def reconcile(self, dropped: DroppedTableReconciler, blocked: Mapping[str, Problem]) -> float:
        """Decide about stores and write the status; return in how many seconds to do so again, or 0.

        `blocked` is, by table key, why the table cannot be placed as desired.
        """
        await self._context.begin()
        cluster, tables = await self._resources.store_cluster(), await self._resources.tables()
        known = await self._context.stores()
        held = await self._held(cluster, known)
        lost_after = {
            await self._context.key_of(table): table.spec.movement.lost_after.seconds for table in tables
        } | dropped.lost_after()
        desired = DesiredStores(cluster=cluster, holders=held.keys(), lost_after=lost_after)
        await self._decide(known, desired)
        known = await self._context.stores()
        versions = await self._raise_version(known, cluster)
        due = next_replacement(known, desired.lost_after)
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
                blocked=blocked,
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
        """During an adoption, admit the stores once every table is adopted; return how many are not."""
        context, request = self._context, self._context.adopting
        if not request or context.seen is None:
            return 0
        left = await dropped.adopt(cluster, tables, request=request)
        for table in tables:
            snapshot, desired = await context.snapshot(await context.key_of(table)), desired_table(table)
            left += to_be_adopted(snapshot, desired.newest_plan, request)
        if not left:
            log.info("adopted etcd cluster %s; stores are admitted", context.seen.cluster)
            await context.commit_all(
                [admit_stores_txn(request, context.seen, keys=context.keys, epoch=context.held.compare)]
            )
        return left

    async def _publish_settings(self, cluster: StoreCluster) -> None:
        """Publish throttles and thresholds to running stores."""
        context, keys = self._context, self._context.keys
        txn = publish_settings(cluster, await context.get(keys.settings), keys=keys, epoch=context.held.compare)
        if txn is not None:
            await context.commit_all([txn])

    async def _decide(self, known: KnownStores, desired: DesiredStores) -> None:
        began, context = self._context.clock.now(), self._context
        if not known.lost and self._decided is not None and self._decided.holds_for(known, desired.cluster):
            self._checked = began
            return
        decisions = decide_store_states(
            known,
            desired,
            keys=context.keys,
            now=context.steady(),
            restart_delays=began - self._checked > UNCHECKED_SECONDS,
            epoch=context.held.compare,
        )
        txns = tuple(decisions)
        if await context.commit_all(txns):
            self._checked = began
            self._decided = None if txns else _Decided(known, desired.cluster)

    async def _raise_version(self, known: KnownStores, cluster: StoreCluster | None) -> Versions:
        """Raise the cluster version if every store supports a newer one; return the versions after that."""
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
        log.info("raised the cluster version from %d to %d", version, versions.target)
        return msgspec.structs.replace(versions, version=versions.target)

    async def _held(self, cluster: StoreCluster | None, known: KnownStores) -> dict[str, Held]:
        """Return, by store that has to drain, the replicas that are or will be on it."""
        draining = known.names & (leaving(cluster, known.names) | asked_to_drain(cluster))
        self.draining = bool(draining)
        if not draining:
            return {}
        encoded = {name: encode(name) for name in draining}
        named: dict[str, set[tuple[str, int]]] = {}
        for kv in await self._context.assignments():
            for name in (name for name, value in encoded.items() if value in kv.value):
                *_, table, partition = kv.key.split("/")
                named.setdefault(name, set()).add((table, int(partition) if partition.isdecimal() else -1))
        return {name: self._size_of(partitions) for name, partitions in named.items()}

    def _size_of(self, partitions: Collection[tuple[str, int]]) -> Held:
        sizes = {table: self._context.reports.sizes(table) for table in {table for table, _ in partitions}}
        found = [sizes[table][partition] for table, partition in partitions if partition in sizes[table]]
        whole = sum(found) if len(found) == len(partitions) else None
        return Held(len(partitions), whole, frozenset(sizes))

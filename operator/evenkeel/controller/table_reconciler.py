"""Reconciles one table: advances it as far as possible now, orders leader moves, and writes its statuses.

A table that fails reports that in its status and continues its last valid plan; other tables are not affected.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from evenkeel.controller.controller_context import ControllerContext
from evenkeel.controller.error_problems import UNAVAILABLE, problem_of
from evenkeel.controller.plan_reconciler import PlanReconciler
from evenkeel.controller.resources_api import Resources
from evenkeel.controller.status_writer import StatusWriter
from evenkeel.errors import EvenkeelError, FencedError, MalformedRecordError
from evenkeel.model.conditions import Reason
from evenkeel.model.partitionassignment import PartitionAssignment, PartitionAssignmentSpec, PartitionStatus
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.model.views import SLICE, slice_name
from evenkeel.protocol.keys import table_name
from evenkeel.reconcile.desired_table import desired_table, table_key
from evenkeel.reconcile.dropped_tables import RESTORE_ANNOTATION, keep_table, restore_table, retention_of
from evenkeel.reconcile.leader_orders import chosen_leaders, order_leaders
from evenkeel.reconcile.partition_status import partition_statuses, slice_status
from evenkeel.reconcile.plan_status import owned_metadata
from evenkeel.reconcile.readiness import Problem
from evenkeel.reconcile.store_states import leaving
from evenkeel.reconcile.table_snapshot import TableSnapshot
from evenkeel.reconcile.table_status import problem_status, table_status
from evenkeel.reconcile.table_steps import Outcome, adopt_table, continue_plan, drop_table, reconcile_table
from evenkeel.runtime.log_context import add_log_fields
from evenkeel.versions import Feature, supports

__all__ = [
    "FORCE_DELETE_ANNOTATION",
    "PAUSED_ANNOTATION",
    "TableReconciler",
    "cluster_paused",
    "is_force_deleted",
    "pause_of",
]

log = logging.getLogger(__name__)

PAUSED_ANNOTATION: Final = "evenkeel.dev/paused"
"""On a Table or a StoreCluster: `true` pauses it like `spec.paused`, without a change of the spec."""
FORCE_DELETE_ANNOTATION: Final = "evenkeel.dev/release"
"""On a Table or a StoreCluster that is being deleted: `true` force-deletes it."""
_AGAIN_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 30.0
"""How long a force-deleted table still waits for stores that are available."""


def is_force_deleted(resource: Table | StoreCluster) -> bool:
    """Whether the resource is deleted without waiting for its data's removal."""
    return resource.metadata.annotations.get(FORCE_DELETE_ANNOTATION) == "true"


def cluster_paused(cluster: StoreCluster) -> bool:
    """Whether the StoreCluster is paused, and with it every table."""
    return cluster.spec.paused or cluster.metadata.annotations.get(PAUSED_ANNOTATION) == "true"


def pause_of(table: Table, cluster: StoreCluster | None) -> str:
    """Return why a table is paused; empty if it is not."""
    if table.spec.paused:
        return "spec.paused is true"
    if table.metadata.annotations.get(PAUSED_ANNOTATION) == "true":
        return f"annotation {PAUSED_ANNOTATION} is true"
    if cluster is not None and cluster_paused(cluster):
        return f"StoreCluster {cluster.metadata.name} is paused"
    return ""


class _Inputs(NamedTuple):
    """The resources that a table's reconciliation reads."""

    table: Table
    cluster: StoreCluster | None
    assignments: Sequence[PartitionAssignment]
    plans: Sequence[RebalancePlan]
    paused: str
    """Why the table is paused; empty if it is not."""


class TableReconciler:
    """Reconciles tables."""

    def __init__(self, resources: Resources, context: ControllerContext, statuses: StatusWriter) -> None:
        self._resources = resources
        self._context = context
        self._statuses = statuses
        self._plans = PlanReconciler(resources, context, statuses)
        self.moving: set[str] = set()
        """Tables with moving replicas: stores' reports change their statuses."""
        self.blocked: dict[str, Problem] = {}
        """By table key, why the table cannot be placed as desired."""
        self._logged: dict[str, int] = {}
        """By table, the plan that was logged last."""
        self._force_deleted: dict[str, float] = {}
        """By force-deleted table, when the annotation was first seen, on the monotonic clock."""

    def forget(self, name: str) -> None:
        """Discard the state of a table that no longer exists."""
        self.moving.discard(name)
        self.blocked = {key: problem for key, problem in self.blocked.items() if table_name(key) != name}
        self._logged.pop(name, None)
        self._force_deleted.pop(name, None)

    async def reconcile(self, name: str) -> float:
        """Advance a table as far as possible now; return in how many seconds to do so again, or 0."""
        await self._context.begin()
        table = await self._resources.table(name)
        if table is None:
            self.forget(name)
            return 0.0 if await self._resources.table_exists(name) else await self._plans.reconcile_without_table(name)
        try:
            return await (self._drop(table) if table.metadata.deletion_timestamp else self._advance(table))
        except (FencedError, *UNAVAILABLE):
            raise
        except Exception as error:  # a bug must not stop the other tables' reconciliation
            if not isinstance(error, EvenkeelError):
                log.exception("reconciling table %s failed unexpectedly", name)
            status = problem_status(table, problem_of(error), now=self._context.now())
            return await self._statuses.write(table, status)

    async def _advance(self, table: Table) -> float:
        name, key = table.metadata.name, await self._context.key_of(table)
        cluster = await self._resources.store_cluster()
        inputs = _Inputs(
            table=table,
            cluster=cluster,
            assignments=await self._resources.assignments(name),
            plans=await self._resources.plans(name),
            paused=pause_of(table, cluster),
        )
        if not inputs.paused:
            key = await self._restore(key, inputs)
        problem, outcome = (None, Outcome()) if inputs.paused else await self._reconcile(key, inputs)
        self._log_plan(name, outcome)
        snapshot = await self._context.snapshot(key)
        if not inputs.paused:
            chosen, now, epoch = chosen_leaders(table), self._context.steady(), self._context.held.compare
            await self._context.commit_all(order_leaders(snapshot, chosen, now=now, epoch=epoch))
        if problem is None and outcome.blocked:
            problem = _blocked(outcome)
        self._note_blocked(key, problem)
        return await self._write_statuses(inputs, snapshot, blocked=outcome.blocked, problem=problem)

    async def _restore(self, key: str, inputs: _Inputs) -> str:
        """Restore a deleted Table's data if the annotation asks for it; return the key of the table's data."""
        uid = inputs.table.metadata.annotations.get(RESTORE_ANNOTATION, "")
        context = self._context
        if not uid or key != table_key(inputs.table):
            return key
        if await context.get(context.keys.table(key)) is not None:
            log.warning("annotation %s is ignored: the table already has data", RESTORE_ANNOTATION)
            return key
        version, epoch = await context.check_version(), context.held.compare
        desired = desired_table(inputs.table, inputs.assignments, inputs.plans, version=version)
        restored = await context.drive(restore_table(desired, keys=context.keys, table=key, uid=uid, epoch=epoch))
        log.info("restored the data of the deleted table %s", restored)
        return restored

    async def _reconcile(self, key: str, inputs: _Inputs) -> tuple[Problem | None, Outcome]:
        """Reconcile the table with its spec; if that is impossible, return why and continue the newest plan."""
        keys, epoch = self._context.keys, self._context.held.compare
        version = await self._context.check_version()
        desired = desired_table(inputs.table, inputs.assignments, inputs.plans, version=version)
        if inputs.cluster is None:
            return Problem(Reason.STORE_CLUSTER_MISSING, "the StoreCluster does not exist; create it"), Outcome()
        try:
            steps = reconcile_table(desired, keys=keys, table=key, epoch=epoch, adopting=self._context.adopting)
            return None, await self._context.place(steps)
        except MalformedRecordError:
            raise
        except EvenkeelError as error:
            problem = await self._with_missing_stores(problem_of(error), inputs.cluster)
        return problem, await self._context.drive(continue_plan(desired, keys=keys, table=key, epoch=epoch))

    async def _with_missing_stores(self, problem: Problem, cluster: StoreCluster) -> Problem:
        """Report missing stores instead of an infeasible placement, which may become feasible with them."""
        there, wanted = len((await self._context.stores()).registered), cluster.spec.stores
        if problem.reason is not Reason.NO_FEASIBLE_PLACEMENT or there >= wanted:
            return problem
        message = f"{there} of {wanted} stores are registered; wait for the others ({problem.message})"
        return Problem(Reason.STORES_NOT_READY, message)

    async def _drop(self, table: Table) -> float:
        keys, key = self._context.keys, await self._context.key_of(table)
        cluster = await self._resources.store_cluster()
        if request := self._context.adopting:
            # First: stores are admitted and the version rises only after every table has been adopted.
            epoch = self._context.held.compare
            await self._context.drive(
                adopt_table(desired_table(table), keys=keys, table=key, epoch=epoch, request=request)
            )
        if (waiting := await self._keep_data(key, table, cluster)) is not None:
            return waiting
        known = (await self._context.stores()).names

        grace = self._grace_of(table) if is_force_deleted(table) else 0.0

        def retired(store: str) -> bool:
            return is_force_deleted(table) or (store not in known and bool(leaving(cluster, (store,))))

        epoch, forced = self._context.held.compare, is_force_deleted(table) and not grace
        if await self._context.drive(drop_table(keys=keys, table=key, epoch=epoch, retired=retired, forced=forced)):
            await self._resources.finalize(table)
            self.forget(table.metadata.name)
            log.info("dropped table %s", key)
            return 0.0
        return grace

    async def _keep_data(self, key: str, table: Table, cluster: StoreCluster | None) -> float | None:
        """Finalize a Table and retain its data; return when to reconcile again, or None if no data is retained."""
        context, paused = self._context, pause_of(table, cluster)
        now = context.steady()
        dropped = retention_of(table.spec, now=now)
        if dropped.until is not None and dropped.until <= now and not paused:
            return None
        if not supports(await context.check_version(), Feature.KEEP_DROPPED):
            return None if is_force_deleted(table) else await self._await_update(table)
        if not await context.drive(keep_table(dropped, keys=context.keys, table=key, epoch=context.held.compare)):
            return None
        await self._resources.finalize(table)
        self.forget(table.metadata.name)
        kept = "until it is purged" if dropped.until is None else f"for {table.spec.undelete_for}"
        log.info("table %s is deleted; its data is retained %s", key, kept)
        return 0.0

    async def _await_update(self, table: Table) -> float:
        message = (
            "the deletion waits until all stores run this release, because stores of the previous release cannot "
            "retain the data of deleted tables; finish the upgrade, or force-delete the table to remove its data now"
        )
        status = problem_status(table, Problem(Reason.VERSION_UNSUPPORTED, message), now=self._context.now())
        return max(_AGAIN_SECONDS, await self._statuses.write(table, status))

    def _grace_of(self, table: Table) -> float:
        """Return for how many seconds a force-deleted table still waits for available stores."""
        now = self._context.clock.now()
        return max(0.0, self._force_deleted.setdefault(table.metadata.name, now) + _GRACE_SECONDS - now)

    def _log_plan(self, name: str, outcome: Outcome) -> None:
        """Add the plan to all further log lines of this reconciliation, and log a new plan once."""
        if not outcome.plan:
            return
        add_log_fields(plan=outcome.plan)
        if self._logged.get(name) != outcome.plan:
            self._logged[name] = outcome.plan
            log.info("carrying out plan %d", outcome.plan)

    def _note_blocked(self, key: str, problem: Problem | None) -> None:
        if problem is not None:
            self.blocked[key] = problem
        else:
            self.blocked.pop(key, None)

    # Statuses

    async def _write_statuses(
        self, inputs: _Inputs, snapshot: TableSnapshot, *, blocked: Mapping[int, str], problem: Problem | None
    ) -> float:
        table, now = inputs.table, self._context.now()
        loads = self._context.reports.of(snapshot.table)
        partitions = partition_statuses(snapshot, loads, blocked=blocked)
        status = table_status(
            table,
            snapshot,
            partitions,
            loads=loads,
            sizes=self._context.reports.sizes(snapshot.table),
            problem=problem,
            paused=inputs.paused,
            now=now,
        )
        (self.moving.add if status.moving else self.moving.discard)(table.metadata.name)
        again = [
            await self._statuses.write(table, status),
            await self._write_assignments(inputs, partitions, problem=problem, now=now),
            await self._plans.reconcile(table, inputs.cluster, snapshot, inputs.plans),
        ]
        return max(again)

    async def _write_assignments(
        self, inputs: _Inputs, partitions: list[PartitionStatus], *, problem: Problem | None, now: str
    ) -> float:
        table, there = inputs.table, inputs.assignments
        wanted = {slice_name(table.metadata.name, first): first for first in range(0, len(partitions), SLICE)}
        missing = wanted.keys() - {found.metadata.name for found in there}
        for name in sorted(missing):
            await self._resources.ensure(_empty_slice(table, wanted[name]))
        if missing:
            there = await self._resources.assignments(table.metadata.name)
        again = 0.0
        for found in there:
            status = slice_status(table, found, partitions, problem=problem, now=now)
            again = max(again, await self._statuses.write(found, status))
        return again


def _blocked(outcome: Outcome) -> Problem:
    partition, reason = next(iter(sorted(outcome.blocked.items())))
    message = f"{len(outcome.blocked)} partitions cannot reach the plan's targets; partition {partition}: {reason}"
    return Problem(Reason.NO_FEASIBLE_PLACEMENT, message)


def _empty_slice(table: Table, first: int) -> PartitionAssignment:
    name = table.metadata.name
    return PartitionAssignment(
        metadata=owned_metadata(table, slice_name(name, first)),
        spec=PartitionAssignmentSpec(table=name, from_=first),
    )

"""Reconciles the RebalancePlans of a table: creates one per plan, answers dry runs, removes old ones."""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel.controller.controller_context import ControllerContext
from evenkeel.controller.error_problems import problem_of
from evenkeel.controller.resources_api import Resources
from evenkeel.controller.status_writer import StatusWriter
from evenkeel.errors import EvenkeelError
from evenkeel.model.rebalanceplan import RebalancePlan, RebalancePlanStatus, WhatIf
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.reconcile.desired_table import desired_table
from evenkeel.reconcile.partition_status import copy_progress_of
from evenkeel.reconcile.plan_status import (
    KEPT_PLANS,
    CopyCosts,
    dry_run_status,
    failed_plan_status,
    orphan_plan_status,
    plan_name,
    plan_object,
    plan_status,
)
from evenkeel.reconcile.planning import preview_table
from evenkeel.reconcile.table_snapshot import TableSnapshot
from evenkeel.reconcile.what_if import what_if_stores, what_if_table

__all__ = ["PlanReconciler"]


class PlanReconciler:
    """Reconciles RebalancePlans with the metastore."""

    def __init__(self, resources: Resources, context: ControllerContext, statuses: StatusWriter) -> None:
        self._resources = resources
        self._context = context
        self._statuses = statuses

    async def reconcile(
        self, table: Table, cluster: StoreCluster | None, snapshot: TableSnapshot, there: Sequence[RebalancePlan]
    ) -> float:
        """Create, update and remove RebalancePlans; return in how many seconds to do so again, or 0."""
        name, plan, again = table.metadata.name, snapshot.plan, 0.0
        if plan is not None and plan_name(name, plan.n) not in {found.metadata.name for found in there}:
            await self._resources.ensure(plan_object(table, plan))
            there = await self._resources.plans(name)
        for found in there:
            if _outdated(found, snapshot):
                await self._resources.remove(found)
                continue
            status = await self._status(found, table, cluster, snapshot)
            # Users wait for the status of a dry run or an approval; a running plan may be done in a moment.
            first_at_once = status.state not in ("Running", "Done")
            again = max(again, await self._statuses.write(found, status, first_at_once=first_at_once))
        return again

    async def reconcile_without_table(self, table: str) -> float:
        """Report in the RebalancePlans of a missing table that it is missing; return when to do so again, or 0."""
        again = 0.0
        for found in await self._resources.plans(table):
            if found.status is None or not found.status.observed_generation:
                status = orphan_plan_status(found, now=self._context.now())
                again = max(again, await self._statuses.write(found, status, first_at_once=True))
        return again

    async def _status(
        self, found: RebalancePlan, table: Table, cluster: StoreCluster | None, snapshot: TableSnapshot
    ) -> RebalancePlanStatus:
        if not found.spec.dry_run:
            return plan_status(
                found,
                snapshot,
                table=table,
                cluster=cluster,
                costs=self._costs(snapshot.table),
                filling=copy_progress_of(self._context.reports.of(snapshot.table), snapshot.table),
                now=self._context.now(),
            )
        if found.status is not None and found.status.observed_generation >= found.metadata.generation:
            return found.status
        return await self._dry_run(found, table, cluster, snapshot)

    async def _dry_run(
        self, found: RebalancePlan, table: Table, cluster: StoreCluster | None, snapshot: TableSnapshot
    ) -> RebalancePlanStatus:
        what_if = found.spec.what_if or WhatIf()
        name = table.metadata.name
        try:
            changed = what_if_table(table, what_if)
            requests = preview_table(
                desired_table(
                    changed, await self._resources.assignments(name), version=await self._context.check_version()
                ),
                keys=self._context.keys,
                table=snapshot.table,
                imagine=lambda stores: what_if_stores(stores, what_if, store_cluster=table.spec.store_cluster),
            )
            preview = await self._context.drive(requests)
        except EvenkeelError as error:
            return failed_plan_status(found, problem_of(error), now=self._context.now())
        costs, now = self._costs(snapshot.table), self._context.now()
        return dry_run_status(found, preview, table=changed, cluster=cluster, costs=costs, now=now)

    def _costs(self, table: str) -> CopyCosts:
        return CopyCosts(self._context.reports.sizes(table), self._context.reports.rates())


def _outdated(found: RebalancePlan, snapshot: TableSnapshot) -> bool:
    """Whether enough newer plans exist for this one to be removed."""
    newest, number = snapshot.plan, found.spec.number
    return newest is not None and number is not None and number <= newest.n - KEPT_PLANS

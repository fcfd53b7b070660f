"""The RebalancePlans of a table: one object for each plan, dry runs answered, old ones taken away."""

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
from evenkeel.reconcile.partition_status import fillings_of
from evenkeel.reconcile.plan_status import (
    KEPT_PLANS,
    CopyCosts,
    dry_run_status,
    failed_plan_status,
    idle_plan_status,
    plan_name,
    plan_object,
    plan_status,
)
from evenkeel.reconcile.planning import preview_table
from evenkeel.reconcile.table_snapshot import TableSnapshot
from evenkeel.reconcile.what_if import imagined_stores, imagined_table

__all__ = ["PlanKeeper"]


class PlanKeeper:
    """Keeps the objects at what the metastore says."""

    def __init__(self, resources: Resources, context: ControllerContext, statuses: StatusWriter) -> None:
        self._resources = resources
        self._context = context
        self._statuses = statuses

    async def describe(
        self, table: Table, cluster: StoreCluster | None, snapshot: TableSnapshot, there: Sequence[RebalancePlan]
    ) -> float:
        """Make, describe and take away objects; returns in how many seconds to come again, or 0."""
        name, plan, again = table.metadata.name, snapshot.plan, 0.0
        if plan is not None and plan_name(name, plan.n) not in {found.metadata.name for found in there}:
            await self._resources.ensure(plan_object(table, plan))
            there = await self._resources.plans(name)
        for found in there:
            if _over(found, snapshot):
                await self._resources.remove(found)
                continue
            status = await self._status(found, table, cluster, snapshot)
            # Somebody may wait for a word on what is not begun; a plan that is may be over in a moment.
            first_at_once = status.state not in ("Running", "Done")
            again = max(again, await self._statuses.write(found, status, first_at_once=first_at_once))
        return again

    async def describe_idle(self, table: str) -> float:
        """Tell who asked for a plan of a table that is not there; returns in how many seconds to come again, or 0."""
        again = 0.0
        for found in await self._resources.plans(table):
            if found.status is None or not found.status.observed_generation:
                status = idle_plan_status(found, now=self._context.now())
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
                filling=fillings_of(self._context.reports.of(snapshot.table), snapshot.table),
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
            imagined = imagined_table(table, what_if)
            requests = preview_table(
                desired_table(
                    imagined, await self._resources.assignments(name), version=await self._context.check_version()
                ),
                keys=self._context.keys,
                table=snapshot.table,
                imagine=lambda stores: imagined_stores(stores, what_if, store_cluster=table.spec.store_cluster),
            )
            preview = await self._context.drive(requests)
        except EvenkeelError as error:
            return failed_plan_status(found, problem_of(error), now=self._context.now())
        costs, now = self._costs(snapshot.table), self._context.now()
        return dry_run_status(found, preview, table=imagined, cluster=cluster, costs=costs, now=now)

    def _costs(self, table: str) -> CopyCosts:
        return CopyCosts(self._context.reports.sizes(table), self._context.reports.rates())


def _over(found: RebalancePlan, snapshot: TableSnapshot) -> bool:
    """Whether the plan is so old that nobody asks for it any more."""
    newest, number = snapshot.plan, found.spec.number
    return newest is not None and number is not None and number <= newest.n - KEPT_PLANS

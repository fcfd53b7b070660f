"""One look at a table: brought as far as is possible now, its leaders called to their places, and described.

What goes wrong is in the table's status, the last good plan is carried on, and no other table is held up by it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from evenkeel.controller.controller_context import ControllerContext
from evenkeel.controller.error_problems import UNAVAILABLE, problem_of
from evenkeel.controller.plan_reconciler import PlanKeeper
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
from evenkeel.reconcile.dropped_tables import RESTORE_ANNOTATION, keep_table, kept_for, restore_table
from evenkeel.reconcile.leader_orders import chosen_leaders, order_leaders
from evenkeel.reconcile.partition_status import Problem, partition_statuses, slice_status
from evenkeel.reconcile.plan_status import owned_metadata
from evenkeel.reconcile.store_states import leaving
from evenkeel.reconcile.table_snapshot import TableSnapshot
from evenkeel.reconcile.table_status import problem_status, table_status
from evenkeel.reconcile.table_steps import Outcome, adopt_table, carry_on, drop_table, reconcile_table
from evenkeel.runtime.log_context import note
from evenkeel.versions import Feature, supports

__all__ = ["PAUSED_ANNOTATION", "RELEASE_ANNOTATION", "TableReconciler", "cluster_paused", "pause_of", "released"]

log = logging.getLogger(__name__)

PAUSED_ANNOTATION: Final = "evenkeel.dev/paused"
"""On a Table or a StoreCluster: `true` has the same effect as `spec.paused`, and is no change of the spec."""
RELEASE_ANNOTATION: Final = "evenkeel.dev/release"
"""On a Table or a StoreCluster that is being deleted: `true` lets it go, whoever has not given up its data yet."""
_AGAIN_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 30.0
"""So long after a deleted table is released stores that answer are still waited for."""


def released(resource: Table | StoreCluster) -> bool:
    """Whether nobody is to be waited for."""
    return resource.metadata.annotations.get(RELEASE_ANNOTATION) == "true"


def cluster_paused(cluster: StoreCluster) -> bool:
    """Whether nothing new is to be begun on any table."""
    return cluster.spec.paused or cluster.metadata.annotations.get(PAUSED_ANNOTATION) == "true"


def pause_of(table: Table, cluster: StoreCluster | None) -> str:
    """Why nothing new is to be begun; empty where it may be."""
    if table.spec.paused:
        return "spec.paused is true"
    if table.metadata.annotations.get(PAUSED_ANNOTATION) == "true":
        return f"paused by the annotation {PAUSED_ANNOTATION}"
    if cluster is not None and cluster_paused(cluster):
        return f"StoreCluster {cluster.metadata.name} is paused"
    return ""


class _Scene(NamedTuple):
    """The resources that one look at a table is about."""

    table: Table
    cluster: StoreCluster | None
    assignments: Sequence[PartitionAssignment]
    plans: Sequence[RebalancePlan]
    paused: str
    """Why nothing new is to be begun, if so."""


class TableReconciler:
    """Looks at tables."""

    def __init__(self, resources: Resources, context: ControllerContext, statuses: StatusWriter) -> None:
        self._resources = resources
        self._context = context
        self._statuses = statuses
        self._plans = PlanKeeper(resources, context, statuses)
        self.moving: set[str] = set()
        """Tables with replicas on their way: what stores report of them is worth a look."""
        self.held_up: dict[str, Problem] = {}
        """By the key of a table, why it cannot be placed as wanted."""
        self._told: dict[str, int] = {}
        """By table, the plan that was logged last."""
        self._released: dict[str, float] = {}
        """By table that is released: when that was first seen, by the clock."""

    def forget(self, name: str) -> None:
        """There is no such table any more."""
        self.moving.discard(name)
        self.held_up = {key: problem for key, problem in self.held_up.items() if table_name(key) != name}
        self._told.pop(name, None)
        self._released.pop(name, None)

    async def look(self, name: str) -> float:
        """Go as far as is possible now; returns in how many seconds to look again, or 0."""
        await self._context.begin()
        table = await self._resources.table(name)
        if table is None:
            self.forget(name)
            return 0.0 if await self._resources.knows(name) else await self._plans.describe_idle(name)
        try:
            return await (self._drop(table) if table.metadata.deletion_timestamp else self._keep(table))
        except (FencedError, *UNAVAILABLE):
            raise
        except Exception as error:  # a bug must not cost the other tables their controller
            if not isinstance(error, EvenkeelError):
                log.exception("table %s: the look failed", name)
            status = problem_status(table, problem_of(error), now=self._context.now())
            return await self._statuses.write(table, status)

    async def _keep(self, table: Table) -> float:
        name, key = table.metadata.name, await self._context.key_of(table)
        cluster = await self._resources.store_cluster()
        scene = _Scene(
            table=table,
            cluster=cluster,
            assignments=await self._resources.assignments(name),
            plans=await self._resources.plans(name),
            paused=pause_of(table, cluster),
        )
        if not scene.paused:
            key = await self._restore(key, scene)
        problem, outcome = (None, Outcome()) if scene.paused else await self._reconcile(key, scene)
        self._tell(name, outcome)
        snapshot = await self._context.snapshot(key)
        if not scene.paused:
            chosen, now, epoch = chosen_leaders(table), self._context.steady(), self._context.held.compare
            await self._context.commit_all(order_leaders(snapshot, chosen, now=now, epoch=epoch))
        if problem is None and outcome.blocked:
            problem = _blocked(outcome)
        self._note(key, problem)
        return await self._describe(scene, snapshot, blocked=outcome.blocked, problem=problem)

    async def _restore(self, key: str, scene: _Scene) -> str:
        """Take over the data of a deleted Table, where that is asked for; returns the key of the table's data."""
        uid = scene.table.metadata.annotations.get(RESTORE_ANNOTATION, "")
        context = self._context
        if not uid or key != table_key(scene.table):
            return key
        if await context.get(context.keys.table(key)) is not None:
            log.warning("%s is ignored: the table has data of its own", RESTORE_ANNOTATION)
            return key
        version, epoch = await context.check_version(), context.held.compare
        desired = desired_table(scene.table, scene.assignments, scene.plans, version=version)
        restored = await context.drive(restore_table(desired, keys=context.keys, table=key, uid=uid, epoch=epoch))
        log.info("the data of the deleted table %s is restored", restored)
        return restored

    async def _reconcile(self, key: str, scene: _Scene) -> tuple[Problem | None, Outcome]:
        """Bring the table to what is wanted; where that cannot be, say why and go on with what was decided last."""
        keys, epoch = self._context.keys, self._context.held.compare
        version = await self._context.check_version()
        desired = desired_table(scene.table, scene.assignments, scene.plans, version=version)
        if scene.cluster is None:
            return Problem(Reason.STORE_CLUSTER_MISSING, "there is no such StoreCluster; create it"), Outcome()
        try:
            steps = reconcile_table(desired, keys=keys, table=key, epoch=epoch, adopting=self._context.adopting)
            return None, await self._context.place(steps)
        except MalformedRecordError:
            raise
        except EvenkeelError as error:
            problem = await self._explained(problem_of(error), scene.cluster)
        return problem, await self._context.drive(carry_on(desired, keys=keys, table=key, epoch=epoch))

    async def _explained(self, problem: Problem, cluster: StoreCluster) -> Problem:
        """A placement that is not feasible may be once the stores are there that the StoreCluster asks for."""
        there, wanted = len((await self._context.stores()).registered), cluster.spec.stores
        if problem.reason is not Reason.NO_FEASIBLE_PLACEMENT or there >= wanted:
            return problem
        return Problem(Reason.STORES_NOT_READY, f"{there} of {wanted} stores are registered, so far {problem.message}")

    async def _drop(self, table: Table) -> float:
        keys, key = self._context.keys, await self._context.key_of(table)
        cluster = await self._resources.store_cluster()
        if request := self._context.adopting:
            # Before all else: stores are let in, and versions rise, only when every table is taken over.
            epoch = self._context.held.compare
            await self._context.drive(
                adopt_table(desired_table(table), keys=keys, table=key, epoch=epoch, request=request)
            )
        if (waiting := await self._keep_data(key, table, cluster)) is not None:
            return waiting
        known = (await self._context.stores()).names

        grace = self._grace_of(table) if released(table) else 0.0

        def retired(store: str) -> bool:
            return released(table) or (store not in known and bool(leaving(cluster, (store,))))

        epoch, forced = self._context.held.compare, released(table) and not grace
        if await self._context.drive(drop_table(keys=keys, table=key, epoch=epoch, retired=retired, forced=forced)):
            await self._resources.gone(table)
            self.forget(table.metadata.name)
            log.info("table %s is dropped", key)
            return 0.0
        return grace

    async def _keep_data(self, key: str, table: Table, cluster: StoreCluster | None) -> float | None:
        """Let a Table go whose data is kept; None where there is nothing to keep, otherwise when to look again."""
        context, paused = self._context, pause_of(table, cluster)
        now = context.steady()
        dropped = kept_for(table.spec, now=now)
        if dropped.until is not None and dropped.until <= now and not paused:
            return None
        if not supports(await context.check_version(), Feature.KEEP_DROPPED):
            return None if released(table) else await self._await_update(table)
        if not await context.drive(keep_table(dropped, keys=context.keys, table=key, epoch=context.held.compare)):
            return None
        await self._resources.gone(table)
        self.forget(table.metadata.name)
        until = "it is purged" if dropped.until is None else str(table.spec.undelete_for) + " are over"
        log.info("table %s is deleted; its data is kept until %s", key, until)
        return 0.0

    async def _await_update(self, table: Table) -> float:
        words = (
            "its deletion waits until all stores run this release: those of the previous one cannot keep the data of "
            "deleted tables; to have it removed at once, release the table"
        )
        status = problem_status(table, Problem(Reason.VERSION_UNSUPPORTED, words), now=self._context.now())
        return max(_AGAIN_SECONDS, await self._statuses.write(table, status))

    def _grace_of(self, table: Table) -> float:
        """Seconds for which stores that answer are still waited for, whatever wall clocks say of the deletion."""
        now = self._context.clock.now()
        return max(0.0, self._released.setdefault(table.metadata.name, now) + _GRACE_SECONDS - now)

    def _tell(self, name: str, outcome: Outcome) -> None:
        """Have every further line name the plan, and say once which it is."""
        if not outcome.plan:
            return
        note(plan=outcome.plan)
        if self._told.get(name) != outcome.plan:
            self._told[name] = outcome.plan
            log.info("plan %d is carried out", outcome.plan)

    def _note(self, key: str, problem: Problem | None) -> None:
        if problem is not None:
            self.held_up[key] = problem
        else:
            self.held_up.pop(key, None)

    # Statuses

    async def _describe(
        self, scene: _Scene, snapshot: TableSnapshot, *, blocked: Mapping[int, str], problem: Problem | None
    ) -> float:
        table, now = scene.table, self._context.now()
        loads = self._context.reports.of(snapshot.table)
        partitions = partition_statuses(snapshot, loads, blocked=blocked)
        status = table_status(
            table,
            snapshot,
            partitions,
            loads=loads,
            sizes=self._context.reports.sizes(snapshot.table),
            problem=problem,
            paused=scene.paused,
            now=now,
        )
        (self.moving.add if status.moving else self.moving.discard)(table.metadata.name)
        again = [
            await self._statuses.write(table, status),
            await self._describe_slices(scene, partitions, problem=problem, now=now),
            await self._plans.describe(table, scene.cluster, snapshot, scene.plans),
        ]
        return max(again)

    async def _describe_slices(
        self, scene: _Scene, partitions: list[PartitionStatus], *, problem: Problem | None, now: str
    ) -> float:
        table, there = scene.table, scene.assignments
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
    words = (
        f"{len(outcome.blocked)} partitions cannot get to where the plan wants them; partition {partition}: {reason}"
    )
    return Problem(Reason.NO_FEASIBLE_PLACEMENT, words)


def _empty_slice(table: Table, first: int) -> PartitionAssignment:
    name = table.metadata.name
    return PartitionAssignment(
        metadata=owned_metadata(table, slice_name(name, first)),
        spec=PartitionAssignmentSpec(table=name, from_=first),
    )

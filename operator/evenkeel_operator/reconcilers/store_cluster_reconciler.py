"""Reconciles StoreClusters: one list of steps for each stage of the life cycle.

new        gets a finalizer, so that nothing of it is left behind
running    `_running_steps`, in groups
paused     only the controller of its tables runs
deleted    `_deletion_steps`; the deletion waits for tables, kept data and a pause
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from evenkeel.controller.error_problems import unavailable_problem
from evenkeel.controller.table_reconciler import cluster_paused
from evenkeel.errors import (
    ApiForbiddenError,
    CertificateMissingError,
    EvenkeelError,
    FencedError,
    ForeignObjectError,
    InvalidInputError,
    KubernetesError,
    MetastoreError,
)
from evenkeel.kube.object_kinds import STORE_CLUSTER
from evenkeel.model.conditions import Reason
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.reconcile.readiness import Problem
from evenkeel_operator.kube.object_cache import Key
from evenkeel_operator.kube.resource_reader import FINALIZER
from evenkeel_operator.reconcilers.kube_resources import add_finalizer, unreadable_cluster
from evenkeel_operator.reconcilers.operator_context import OperatorContext
from evenkeel_operator.reconcilers.store_cluster_deletion import StoreClusterDeletion
from evenkeel_operator.reconcilers.store_cluster_objects import SOON_SECONDS, ClusterPass, StoreClusterObjects

__all__ = ["StoreClusterReconciler"]

_NOT_READY_SECONDS: Final = 10 * SOON_SECONDS
"""Time to the next reconciliation while pods are not ready."""

Step = Callable[[ClusterPass], Awaitable[None]]
DeletionStep = Callable[[ClusterPass], Awaitable[float | None]]
"""Returns None to go on with the next step, or in how many seconds to try again."""


class StoreClusterReconciler:
    """Decides on the stage of a StoreCluster, and runs its steps."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._objects = StoreClusterObjects(context)
        self._deletion = StoreClusterDeletion(context, keep_running=self._apply_objects)

    # Stages

    def _running_steps(self) -> Sequence[Sequence[Step]]:
        """A failed step skips the rest of its group; the other groups still run."""
        return (
            # Plans, moves and statuses of the tables.
            (self._ensure_controller,),
            self._object_steps(),
            # A drained node finds its leaderships gone before it evicts pods.
            (self._objects.inhibit_leadership_on_cordoned_nodes,),
            # Last, because some storage classes cannot grow volumes.
            (self._objects.grow_volumes,),
        )

    def _object_steps(self) -> Sequence[Step]:
        """Apply all objects, in the order in which they depend on each other."""
        objects = self._objects
        return (
            objects.find_metastore,
            # What pods and clients mount.
            objects.record_client_namespaces,
            objects.apply_certificates,
            objects.apply_secrets,
            objects.apply_services,
            # The pods; surplus stores keep theirs until they hold no replica.
            objects.count_pods,
            objects.check_volumes,
            objects.mark_emptied_volumes,
            objects.apply_stateful_set,
            objects.apply_budget,
            # What is left of stores that are gone, and pods of an older template.
            objects.delete_emptied_volumes,
            objects.replace_outdated_pod,
        )

    def _deletion_steps(self) -> Sequence[DeletionStep]:
        deletion = self._deletion
        return (
            # The stores keep running while there is something to drop or to restore.
            deletion.wait_for_tables,
            deletion.wait_for_kept_data,
            # From here on the data is lost.
            deletion.stop_controller,
            deletion.wait_while_paused,
            deletion.delete_pods,
            # Only after the pods, which would write their keys again.
            deletion.delete_metastore_keys,
            deletion.delete_volumes,
            # What the garbage collector does not delete.
            deletion.delete_client_secrets,
            deletion.delete_certificates,
            deletion.remove_finalizer,
        )

    # Running them

    async def reconcile(self, key: Key) -> float | None:
        """Bring a StoreCluster to its desired state; return in how many seconds to reconcile it again."""
        subject = self._context.cache.get(STORE_CLUSTER, *key)
        if subject is None:
            await self._forget(key)
            return None
        try:
            cluster = self._context.reader.read(StoreCluster, subject)
        except InvalidInputError as error:
            if "deletionTimestamp" in subject["metadata"]:
                return await self._delete(ClusterPass(cluster=unreadable_cluster(subject), subject=subject))
            message = f"{error}; the previous spec stays in force"
            self._context.cluster_statuses.publish_problem(subject, Problem(Reason.SPEC_INVALID, message))
            return None
        current = ClusterPass(cluster=cluster, subject=subject)
        if cluster.metadata.deletion_timestamp:
            return await self._delete(current)
        if FINALIZER not in cluster.metadata.finalizers:
            await add_finalizer(self._context.kube, self._context.cache, STORE_CLUSTER, subject)
            return 0.0
        return await self._run(current)

    async def _run(self, current: ClusterPass) -> float:
        cluster, statuses = current.cluster, self._context.cluster_statuses
        statuses.observe_zones(cluster)
        groups = self._running_steps()
        for group in groups[:1] if cluster_paused(cluster) else groups:
            await self._attempt(group, current)
        statuses.publish(cluster, current.problems)
        if current.problems:
            raise EvenkeelError("; ".join(problem.message for problem in current.problems))
        return current.requeue_after if statuses.all_ready(cluster) else min(current.requeue_after, _NOT_READY_SECONDS)

    async def _delete(self, current: ClusterPass) -> float | None:
        if FINALIZER not in current.cluster.metadata.finalizers:
            return None
        for step in self._deletion_steps():
            if (again := await step(current)) is not None:
                return again
        return None

    async def _forget(self, key: Key) -> None:
        await self._context.controllers.stop(key)
        await self._objects.cordons.end(Keys(namespace=key[0], store_cluster=key[1]))
        self._context.cluster_statuses.forget(key)
        self._deletion.forget(key)

    async def _ensure_controller(self, current: ClusterPass) -> None:
        await self._context.controllers.ensure(current.cluster)

    async def _apply_objects(self, current: ClusterPass) -> None:
        await self._attempt(self._object_steps(), current)

    async def _attempt(self, group: Sequence[Step], current: ClusterPass) -> None:
        """Run a group of steps; note the problem that stopped it."""
        try:
            for step in group:
                await step(current)
        except FencedError:
            raise  # This operator no longer leads, so it reports nothing.
        except KubernetesError as error:
            current.problems.append(_api_problem(error))
        except MetastoreError as error:
            current.problems.append(unavailable_problem(error))
        except InvalidInputError as error:
            current.problems.append(Problem(Reason.SPEC_INVALID, str(error)))
        except CertificateMissingError as error:
            current.problems.append(Problem(Reason.CERTIFICATE_MISSING, str(error)))


def _api_problem(error: KubernetesError) -> Problem:
    if isinstance(error, ForeignObjectError):
        return Problem(Reason.FOREIGN_OBJECT, str(error))
    if isinstance(error, ApiForbiddenError):
        return Problem(Reason.FORBIDDEN, f"the operator lacks a permission: {error}")
    return Problem(Reason.API_REFUSED, str(error))

"""Reconciles Table objects: adds and removes the finalizer, and reports why a Table cannot be served.

The controller of the StoreCluster does everything else for a table.
"""

from __future__ import annotations

from evenkeel.controller.table_reconciler import FORCE_DELETE_ANNOTATION
from evenkeel.errors import InvalidInputError
from evenkeel.kube.object_kinds import STORE_CLUSTER, TABLE, Object
from evenkeel.model.conditions import Reason, timestamp
from evenkeel.model.table import Table
from evenkeel.reconcile.dropped_tables import RESTORE_ANNOTATION
from evenkeel.reconcile.readiness import Problem
from evenkeel.versions import FIRST
from evenkeel_operator.kube.object_cache import Key
from evenkeel_operator.kube.resource_reader import FINALIZER
from evenkeel_operator.reconcilers.kube_resources import add_finalizer, remove_finalizer
from evenkeel_operator.reconcilers.operator_context import OperatorContext
from evenkeel_operator.reconcilers.pod_conditions import with_problems

__all__ = ["TableResourceReconciler"]


class TableResourceReconciler:
    """Decides on the stage of a Table, and carries out the operator's part of it."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    async def reconcile(self, key: Key) -> None:
        """Add the finalizer to a Table, or report why it cannot be served; a deleted Table may lose its finalizer."""
        context = self._context
        subject = context.cache.get(TABLE, *key)
        if subject is None:
            return
        cluster = context.cache.get(STORE_CLUSTER, key[0], str(subject["spec"].get("storeCluster", "")))
        if "deletionTimestamp" in subject["metadata"]:
            # Without a StoreCluster there is no data. A controller that cannot work does not finish a forced deletion.
            if cluster is None or (_is_force_deleted(subject) and self._controller_fails(cluster)):
                await remove_finalizer(context.kube, context.cache, TABLE, key)
        elif (problem := self._problem(subject, cluster)) is not None:
            self._publish_problem(subject, cluster, problem)
        elif FINALIZER not in subject["metadata"].get("finalizers", ()):
            await add_finalizer(context.kube, context.cache, TABLE, subject)

    def _controller_fails(self, cluster: Object) -> bool:
        metadata = cluster["metadata"]
        return (metadata["namespace"], metadata["name"]) in self._context.controllers.problems()

    def _publish_problem(self, subject: Object, cluster: Object | None, problem: Problem) -> None:
        statuses = self._context.statuses
        generation, now = subject["metadata"].get("generation", 0), timestamp(self._context.wall_clock())
        version = FIRST if cluster is None else statuses.of(cluster).get("version", FIRST)
        status = with_problems(statuses.of(subject), [problem], generation=generation, now=now, version=version)
        statuses.set(subject, status)

    def _problem(self, subject: Object, cluster: Object | None) -> Problem | None:
        try:
            self._context.reader.read(Table, subject)
        except InvalidInputError as error:
            return Problem(Reason.SPEC_INVALID, f"{error}; the previous spec stays in force")
        wanted = subject["spec"]["storeCluster"]
        if cluster is None:
            message = f"there is no StoreCluster {wanted} in namespace {subject['metadata']['namespace']}; create it"
            return Problem(Reason.STORE_CLUSTER_MISSING, message)
        restored = RESTORE_ANNOTATION in (subject["metadata"].get("annotations") or {})
        if "deletionTimestamp" in cluster["metadata"] and not restored:
            # A StoreCluster waits for kept data, which can be restored until then.
            return Problem(Reason.STORE_CLUSTER_MISSING, f"the StoreCluster {wanted} is being deleted")
        return None


def _is_force_deleted(subject: Object) -> bool:
    return bool(subject["metadata"].get("annotations", {}).get(FORCE_DELETE_ANNOTATION) == "true")

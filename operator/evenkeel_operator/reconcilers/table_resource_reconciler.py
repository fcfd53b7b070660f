"""Tables, as far as they are the operator's own business: claimed before they have data, told what they lack.

All else about a table is its StoreCluster's controller's.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from evenkeel.controller.table_reconciler import RELEASE_ANNOTATION
from evenkeel.errors import InvalidInputError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import STORE_CLUSTER, TABLE, Object
from evenkeel.model.conditions import Reason, timestamp
from evenkeel.model.table import Table
from evenkeel.reconcile.dropped_tables import RESTORE_ANNOTATION
from evenkeel.reconcile.partition_status import Problem
from evenkeel.versions import FIRST
from evenkeel_operator.kube.object_cache import Cache, Key
from evenkeel_operator.kube.resource_reader import FINALIZER, Reader
from evenkeel_operator.kube.kube_status_writer import StatusWriter
from evenkeel_operator.reconcilers.kube_resources import claim, release
from evenkeel_operator.reconcilers.pod_conditions import with_problems

__all__ = ["TableResourceReconciler"]


class TableResourceReconciler:
    """Looks at tables."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        statuses: StatusWriter,
        reader: Reader,
        *,
        unavailable: Callable[[Key], bool] = lambda _: False,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`helpless` tells whether nothing can be done for the tables of a StoreCluster at the moment."""
        self._kube = kube
        self._cache = cache
        self._unavailable = unavailable
        self._statuses = statuses
        self._reader = reader
        self._wall_clock = wall_clock

    async def look(self, key: Key) -> None:
        """Claim a table, or say why it cannot be."""
        subject = self._cache.get(TABLE, *key)
        if subject is None:
            return
        cluster = self._cache.get(STORE_CLUSTER, key[0], str(subject["spec"].get("storeCluster", "")))
        if "deletionTimestamp" in subject["metadata"]:
            if cluster is None or (_released(subject) and self._unavailable((key[0], cluster["metadata"]["name"]))):
                # Nobody is left who could have data of it, or nobody who could do something about it.
                await release(self._kube, self._cache, TABLE, key)
            return
        if (problem := self._trouble(subject, cluster)) is not None:
            generation, now = subject["metadata"].get("generation", 0), timestamp(self._wall_clock())
            version = FIRST if cluster is None else self._statuses.of(cluster).get("version", FIRST)
            status = with_problems(
                self._statuses.of(subject), [problem], generation=generation, now=now, version=version
            )
            self._statuses.set(subject, status)
        elif FINALIZER not in subject["metadata"].get("finalizers", ()):
            await claim(self._kube, self._cache, TABLE, subject)

    def _trouble(self, subject: Object, cluster: Object | None) -> Problem | None:
        try:
            self._reader.read(Table, subject)
        except InvalidInputError as error:
            return Problem(Reason.SPEC_INVALID, f"{error}; what was asked for before stays in force")
        wanted = subject["spec"]["storeCluster"]
        if cluster is None:
            words = f"there is no StoreCluster {wanted} in namespace {subject['metadata']['namespace']}; create it"
            return Problem(Reason.STORE_CLUSTER_MISSING, words)
        restored = RESTORE_ANNOTATION in (subject["metadata"].get("annotations") or {})
        if "deletionTimestamp" in cluster["metadata"] and not restored:
            # Data that is kept holds up the deletion, and can be restored until then.
            return Problem(Reason.STORE_CLUSTER_MISSING, f"the StoreCluster {wanted} is being deleted")
        return None


def _released(subject: Object) -> bool:
    return bool(subject["metadata"].get("annotations", {}).get(RELEASE_ANNOTATION) == "true")

"""The resources of one StoreCluster for its controller: reads the cache, writes to the API server and the cache."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from pydantic import ValidationError

from evenkeel.controller.resources_api import Status, WithStatus
from evenkeel.errors import ApiConflictError, InvalidInputError, KubernetesError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import REBALANCE_PLAN, RESOURCE_KINDS, STORE_CLUSTER, TABLE, Kind, Object
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.quantities import Duration
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.resource_base import ObjectMeta, without_entry
from evenkeel.model.resource_loading import Resource
from evenkeel.model.storecluster import MetastoreOverride, StoreCluster, StoreClusterSpec, StoreClusterStatus
from evenkeel.model.table import DEFAULT_UNDELETE_FOR, Table, TableSpec
from evenkeel.runtime.work_queue import WorkQueue
from evenkeel_operator.kube.kube_status_writer import KubeStatusWriter
from evenkeel_operator.kube.object_cache import Cache, Key
from evenkeel_operator.kube.resource_reader import FINALIZER, Reader

__all__ = [
    "KubeResources",
    "add_finalizer",
    "deleted_table",
    "remove_finalizer",
    "status_document",
    "unreadable_cluster",
]

log = logging.getLogger(__name__)

_RETRY: Final = 5.0
_TRIES: Final = 5
R = TypeVar("R", bound=Resource)


class KubeResources:
    """Implements `evenkeel.controller.resources_api.Resources`."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        statuses: KubeStatusWriter,
        reader: Reader,
        *,
        cluster: Key,
        with_node_zones: Callable[[StoreCluster], StoreCluster],
        describe: Callable[[StoreCluster, StoreClusterStatus], StoreClusterStatus],
    ) -> None:
        """`with_node_zones` adds zones to a StoreCluster, `describe` adds the state of its pods to its status."""
        self._kube = kube
        self._cache = cache
        self._statuses = statuses
        self._reader = reader
        self._namespace, self._name = cluster
        self._with_node_zones = with_node_zones
        self._describe = describe
        self.last_status: StoreClusterStatus | None = None
        """The status that the controller last wrote for the StoreCluster."""
        self._readable: StoreCluster | None = None
        """The StoreCluster with its last valid spec."""
        self._changed = WorkQueue[str | None]()
        self._changed.add(None)

    # Changes

    def notify(self, table: str | None = None) -> None:
        """Enqueue a table that has changed, or (None) a change that concerns all tables."""
        self._changed.add(table)

    async def changes(self) -> AsyncIterator[str | None]:
        """Yield what to reconcile: a table by its name, or everything (None), as at the start."""
        while True:
            due = list(await self._changed.take_all())
            for name in [None] if None in due else due:
                yield name

    # Reading

    async def store_cluster(self) -> StoreCluster | None:
        """Return the StoreCluster; None if it does not exist."""
        subject = self._cache.get(STORE_CLUSTER, self._namespace, self._name)
        cluster = None if subject is None else self._read_cluster(subject)
        if cluster is None or self.last_status is None:
            return cluster
        # The controller does not see what the operator added to its status.
        return cluster.model_copy(update={"status": self.last_status})

    def _read_cluster(self, subject: Object) -> StoreCluster | None:
        """Return the StoreCluster; if its spec is invalid, the previous one stays in force."""
        try:
            self._readable = self._reader.read(StoreCluster, subject)
        except InvalidInputError:
            known = self._readable
            if known is None or known.metadata.uid != subject["metadata"]["uid"]:
                return None
        assert self._readable is not None
        return self._with_node_zones(self._readable)

    async def tables(self) -> Sequence[Table]:
        """Return its tables, including those being deleted."""
        found = (self._table(subject) for subject in self._cache.owned(TABLE, self._namespace, self._name))
        return [table for table in found if table is not None]

    async def table(self, name: str) -> Table | None:
        """Return one of its tables."""
        subject = self._cache.get(TABLE, self._namespace, name)
        if subject is None or subject["spec"].get("storeCluster") != self._name:
            return None
        return self._table(subject)

    async def table_exists(self, table: str) -> bool:
        """Whether a table of that name exists, in any StoreCluster."""
        return self._cache.get(TABLE, self._namespace, table) is not None

    async def assignments(self, table: str) -> Sequence[PartitionAssignment]:
        """Return the PartitionAssignments of a table, in order."""
        return sorted(self._owned(PartitionAssignment, table), key=lambda found: found.spec.from_)

    async def plans(self, table: str) -> Sequence[RebalancePlan]:
        """Return the RebalancePlans of a table, by name."""
        return self._owned(RebalancePlan, table)

    def _owned(self, kind: type[R], table: str) -> list[R]:
        found = []
        for subject in self._cache.owned(RESOURCE_KINDS[kind], self._namespace, table):
            try:
                found.append(self._reader.read(kind, subject))
            except InvalidInputError as error:
                log.warning("%s", error)
        return found

    def _table(self, subject: Object) -> Table | None:
        """Return the table once it has its finalizer; data created before that might never be deleted."""
        metadata = subject["metadata"]
        if FINALIZER not in metadata.get("finalizers", ()):
            return None
        if "deletionTimestamp" in metadata:
            return deleted_table(self._reader, subject)
        try:
            return self._reader.read(Table, subject)
        except InvalidInputError:
            return None

    # Writing

    async def set_status(self, resource: WithStatus, status: Status) -> None:
        """Enqueue a status to be written, unless the resource is gone."""
        metadata = resource.metadata
        subject = self._cache.get(RESOURCE_KINDS[type(resource)], metadata.namespace, metadata.name)
        if subject is None or subject["metadata"]["uid"] != metadata.uid:
            return
        if isinstance(resource, StoreCluster):
            assert isinstance(status, StoreClusterStatus)
            self.last_status = status
            status = self._describe(resource, status)
        written = status_document(status)
        self._reader.set(subject, self._statuses.set(subject, written), status)

    async def ensure(self, resource: PartitionAssignment | RebalancePlan) -> None:
        """Create a resource that the controller needs, if it does not exist."""
        kind = RESOURCE_KINDS[type(resource)]
        table = self._cache.get(TABLE, self._namespace, resource.spec.table)
        if table is None or self._cache.get(kind, self._namespace, resource.metadata.name) is not None:
            return
        try:
            self._cache.put(kind, await self._kube.create(_child(kind, resource, table)))
        except ApiConflictError:
            log.debug("%s %s exists already", kind.name, resource.metadata.name)
        except KubernetesError as error:
            self._retry_later(resource.spec.table, error)

    async def remove(self, plan: RebalancePlan) -> None:
        """Delete the object of an old plan."""
        subject = self._cache.get(REBALANCE_PLAN, self._namespace, plan.metadata.name)
        if subject is None:
            return
        try:
            await self._kube.delete(REBALANCE_PLAN, plan.metadata.name, self._namespace)
            self._cache.remove(REBALANCE_PLAN, subject)
        except KubernetesError as error:
            self._retry_later(plan.spec.table, error)

    async def create(self, table: Table) -> None:
        """Recreate a deleted Table, unless one of that name exists."""
        try:
            self._cache.put(TABLE, await self._kube.create(table.document()))
        except ApiConflictError:
            log.debug("Table %s exists already", table.metadata.name)

    async def remove_from_annotation(self, annotation: str, entry: str) -> None:
        """Remove an entry from an annotation of the StoreCluster that has a comma-separated list."""
        subject = self._cache.get(STORE_CLUSTER, self._namespace, self._name)
        if subject is None:
            return
        metadata = subject["metadata"]
        left = without_entry((metadata.get("annotations") or {}).get(annotation, ""), entry) or None
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": {annotation: left}}}
        self._cache.put(STORE_CLUSTER, await self._kube.merge(STORE_CLUSTER, self._name, self._namespace, patch))

    async def finalize(self, table: Table) -> None:
        """Remove the finalizer of a Table; its PartitionAssignments and RebalancePlans are garbage-collected."""
        try:
            await remove_finalizer(self._kube, self._cache, TABLE, (self._namespace, table.metadata.name))
        except KubernetesError as error:
            self._retry_later(table.metadata.name, error)

    def _retry_later(self, table: str, error: KubernetesError) -> None:
        log.warning("reconciling table %s/%s again in %g s: %s", self._namespace, table, _RETRY, error)
        self._changed.add(table, after=_RETRY)


async def remove_finalizer(kube: Kube, cache: Cache, kind: Kind, key: Key) -> None:
    """Remove the operator's finalizer from an object, if both still exist."""
    subject = cache.get(kind, *key)
    finalizers: list[str] = subject["metadata"].get("finalizers", []) if subject is not None else []
    if subject is None or FINALIZER not in finalizers:
        return
    await _set_finalizers(kube, cache, kind, subject, lambda before: [name for name in before if name != FINALIZER])


async def add_finalizer(kube: Kube, cache: Cache, kind: Kind, subject: Object) -> None:
    """Add the operator's finalizer to an object."""
    await _set_finalizers(kube, cache, kind, subject, lambda before: list({*before, FINALIZER}))


async def _set_finalizers(
    kube: Kube, cache: Cache, kind: Kind, subject: Object, wanted: Callable[[list[str]], list[str]]
) -> None:
    name, namespace = subject["metadata"]["name"], subject["metadata"]["namespace"]
    for _ in range(_TRIES):
        metadata = subject["metadata"]
        finalizers = wanted(metadata.get("finalizers", []))
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}}
        try:
            after = await kube.merge(kind, name, namespace, patch)
            break
        except ApiConflictError:
            found = await kube.get(kind, name, namespace)
            if found is None or found["metadata"]["uid"] != metadata["uid"]:
                return
            subject = found
    else:
        raise ApiConflictError(f"{kind.name} {namespace}/{name} changed during every attempt to set its finalizer")
    if "deletionTimestamp" in after["metadata"] and not after["metadata"].get("finalizers"):
        cache.remove(kind, after)
    else:
        cache.put(kind, after)


def status_document(status: Status) -> Object:
    """Return a status as a document for the API server."""
    written: Object = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return written


def _child(kind: Kind, resource: PartitionAssignment | RebalancePlan, table: Object) -> Object:
    name, uid = table["metadata"]["name"], table["metadata"]["uid"]
    owner = {"apiVersion": TABLE.api_version, "kind": TABLE.name, "name": name, "uid": uid, "controller": True}
    metadata: dict[str, Any] = {
        "name": resource.metadata.name,
        "namespace": table["metadata"]["namespace"],
        "labels": dict(resource.metadata.labels),
        "ownerReferences": [owner],
    }
    spec = resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": spec}


def deleted_table(reader: Reader, subject: Object) -> Table:
    """Return a Table that is being deleted, even if its spec is invalid."""
    try:
        return reader.read(Table, subject)
    except InvalidInputError:
        return _unreadable_table(subject)


def _unreadable_table(subject: Object) -> Table:
    """Return a Table with an invalid spec, with what is needed to drop it."""
    # Retain is respected, whatever else is invalid.
    policy = "Retain" if subject["spec"].get("deletionPolicy") == "Retain" else "Delete"
    known: dict[str, Any] = {
        "store_cluster": subject["spec"].get("storeCluster", ""),
        "paused": False,
        "deletion_policy": policy,
        "undelete_for": _undelete_for(subject["spec"].get("undeleteFor")),
    }
    spec = TableSpec.model_construct(**known)
    return Table.model_construct(metadata=_deletion_metadata(subject), spec=spec, status=None)


def _undelete_for(written: Any) -> Duration:
    readable = isinstance(written, str) and re.fullmatch(Duration.PATTERN, written)
    return Duration(written) if readable else DEFAULT_UNDELETE_FOR


def unreadable_cluster(subject: Object) -> StoreCluster:
    """Return a StoreCluster with an invalid spec, with what is needed to delete it."""
    try:
        metastore = MetastoreOverride.model_validate_json(msgspec.json.encode(subject["spec"].get("metastore")))
    except ValidationError:
        metastore = None
    paused = subject["spec"].get("paused") is True
    known: dict[str, Any] = {"stores": 1, "metastore": metastore, "paused": paused}
    spec = StoreClusterSpec.model_construct(**known)
    return StoreCluster.model_construct(metadata=_deletion_metadata(subject), spec=spec, status=None)


def _deletion_metadata(subject: Object) -> ObjectMeta:
    """Return the metadata that the deletion of an object uses."""
    metadata = subject["metadata"]
    return ObjectMeta(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        annotations=metadata.get("annotations", {}),
        finalizers=tuple(metadata.get("finalizers", ())),
        deletion_timestamp=metadata["deletionTimestamp"],
    )

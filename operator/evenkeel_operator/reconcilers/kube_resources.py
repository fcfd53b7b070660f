"""The resources of one StoreCluster, as the controller asks for them: read from the cache, written through to it."""

from __future__ import annotations

import asyncio
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
from evenkeel.model.resource_base import ObjectMeta, struck_off
from evenkeel.model.resource_loading import Resource
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.quantities import Duration
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.storecluster import MetastoreOverride, StoreCluster, StoreClusterSpec, StoreClusterStatus
from evenkeel.model.table import DEFAULT_UNDELETE_FOR, Table, TableSpec
from evenkeel_operator.kube.object_cache import Cache, Key
from evenkeel_operator.kube.resource_reader import FINALIZER, Reader
from evenkeel_operator.kube.kube_status_writer import StatusWriter

__all__ = ["KubeResources", "claim", "deleted_table", "release", "status_document", "unreadable_cluster"]

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
        statuses: StatusWriter,
        reader: Reader,
        *,
        cluster: Key,
        with_node_zones: Callable[[StoreCluster], StoreCluster],
        describe: Callable[[StoreCluster, StoreClusterStatus], StoreClusterStatus],
    ) -> None:
        """`seen_as` adds what the operator knows of a StoreCluster's stores, `describe` what it knows of its pods."""
        self._kube = kube
        self._cache = cache
        self._statuses = statuses
        self._reader = reader
        self._namespace, self._name = cluster
        self._seen_as = with_node_zones
        self._describe = describe
        self.last_status: StoreClusterStatus | None = None
        """What the controller last said of the StoreCluster."""
        self._readable: StoreCluster | None = None
        """The StoreCluster as it was when it could last be read."""
        self._news: dict[str | None, None] = {None: None}
        self._heard = asyncio.Event()
        self._heard.set()

    # Listening

    def hear(self, table: str | None = None) -> None:
        """A table has changed, or something that concerns all of them."""
        self._news[table] = None
        self._heard.set()

    async def changes(self) -> AsyncIterator[str | None]:
        """What to look at again: a table by its name, or everything (None), as at the beginning."""
        while True:
            await self._heard.wait()
            self._heard.clear()
            news, self._news = self._news, {}
            for name in [None] if None in news else news:
                yield name

    # Reading

    async def store_cluster(self) -> StoreCluster | None:
        """The StoreCluster itself; None where there is none."""
        subject = self._cache.get(STORE_CLUSTER, self._namespace, self._name)
        cluster = None if subject is None else self._read_cluster(subject)
        if cluster is None or self.last_status is None:
            return cluster
        # What the operator added to it is no concern of the controller's.
        return cluster.model_copy(update={"status": self.last_status})

    def _read_cluster(self, subject: Object) -> StoreCluster | None:
        """The StoreCluster; where what it says now cannot be read, what it said before stays in force."""
        try:
            self._readable = self._reader.read(StoreCluster, subject)
        except InvalidInputError:
            known = self._readable
            if known is None or known.metadata.uid != subject["metadata"]["uid"]:
                return None
        assert self._readable is not None
        return self._seen_as(self._readable)

    async def tables(self) -> Sequence[Table]:
        """Its tables, those that are being deleted included."""
        found = (self._table(subject) for subject in self._cache.owned(TABLE, self._namespace, self._name))
        return [table for table in found if table is not None]

    async def table(self, name: str) -> Table | None:
        """One of its tables."""
        subject = self._cache.get(TABLE, self._namespace, name)
        if subject is None or subject["spec"].get("storeCluster") != self._name:
            return None
        return self._table(subject)

    async def knows(self, table: str) -> bool:
        """Whether there is a table of that name, whoever has it."""
        return self._cache.get(TABLE, self._namespace, table) is not None

    async def assignments(self, table: str) -> Sequence[PartitionAssignment]:
        """The PartitionAssignments of a table, in order."""
        return sorted(self._owned(PartitionAssignment, table), key=lambda found: found.spec.from_)

    async def plans(self, table: str) -> Sequence[RebalancePlan]:
        """The RebalancePlans of a table, by name."""
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
        """The table, once its finalizer is there: no data before that, or it might never be deleted."""
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
        """Write a status soon; nothing happens where the resource is gone."""
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
        """Make a resource that the controller itself wants, where it is not there."""
        kind = RESOURCE_KINDS[type(resource)]
        table = self._cache.get(TABLE, self._namespace, resource.spec.table)
        if table is None or self._cache.get(kind, self._namespace, resource.metadata.name) is not None:
            return
        try:
            self._cache.put(kind, await self._kube.create(_child(kind, resource, table)))
        except ApiConflictError:
            log.debug("%s %s is there already", kind.name, resource.metadata.name)
        except KubernetesError as error:
            self._put_off(resource.spec.table, error)

    async def remove(self, plan: RebalancePlan) -> None:
        """Take away an object of a plan that is long over."""
        subject = self._cache.get(REBALANCE_PLAN, self._namespace, plan.metadata.name)
        if subject is None:
            return
        try:
            await self._kube.delete(REBALANCE_PLAN, plan.metadata.name, self._namespace)
            self._cache.remove(REBALANCE_PLAN, subject)
        except KubernetesError as error:
            self._put_off(plan.spec.table, error)

    async def create(self, table: Table) -> None:
        """Make a Table again that was deleted; its finalizer and its data follow as with any other."""
        try:
            self._cache.put(TABLE, await self._kube.create(table.document()))
        except ApiConflictError:
            log.debug("Table %s is there already", table.metadata.name)

    async def strike_off(self, annotation: str, entry: str) -> None:
        """Take an entry off an annotation of the StoreCluster."""
        subject = self._cache.get(STORE_CLUSTER, self._namespace, self._name)
        if subject is None:
            return
        metadata = subject["metadata"]
        left = struck_off((metadata.get("annotations") or {}).get(annotation, ""), entry) or None
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": {annotation: left}}}
        self._cache.put(STORE_CLUSTER, await self._kube.merge(STORE_CLUSTER, self._name, self._namespace, patch))

    async def gone(self, table: Table) -> None:
        """Nothing is left of a table: let the resource go; those made for it follow by their owner."""
        try:
            await release(self._kube, self._cache, TABLE, (self._namespace, table.metadata.name))
        except KubernetesError as error:
            self._put_off(table.metadata.name, error)

    def _put_off(self, table: str, error: KubernetesError) -> None:
        log.warning("table %s/%s is looked at again: %s", self._namespace, table, error)
        asyncio.get_running_loop().call_later(_RETRY, self.hear, table)


async def release(kube: Kube, cache: Cache, kind: Kind, key: Key) -> None:
    """Take our finalizer off an object, if it is still there."""
    subject = cache.get(kind, *key)
    finalizers: list[str] = subject["metadata"].get("finalizers", []) if subject is not None else []
    if subject is None or FINALIZER not in finalizers:
        return
    await _set_finalizers(kube, cache, kind, subject, lambda before: [name for name in before if name != FINALIZER])


async def claim(kube: Kube, cache: Cache, kind: Kind, subject: Object) -> None:
    """Put our finalizer on an object."""
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
        raise ApiConflictError(f"{kind.name} {namespace}/{name} is changed all the time; its finalizer waits")
    if "deletionTimestamp" in after["metadata"] and not after["metadata"].get("finalizers"):
        cache.remove(kind, after)
    else:
        cache.put(kind, after)


def status_document(status: Status) -> Object:
    """A status as the API server takes it."""
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
    """A Table that is being deleted, whether or not its spec can be read."""
    try:
        return reader.read(Table, subject)
    except InvalidInputError:
        return _unreadable(subject)


def _unreadable(subject: Object) -> Table:
    """A table that is to be dropped, whatever its spec says: who it is, is all that takes."""
    # Whoever wrote Retain meant it, whatever else is wrong with the spec.
    policy = "Retain" if subject["spec"].get("deletionPolicy") == "Retain" else "Delete"
    known: dict[str, Any] = {
        "store_cluster": subject["spec"].get("storeCluster", ""),
        "paused": False,
        "deletion_policy": policy,
        "undelete_for": _undelete_for(subject["spec"].get("undeleteFor")),
    }
    spec = TableSpec.model_construct(**known)
    return Table.model_construct(metadata=_parting(subject), spec=spec, status=None)


def _undelete_for(written: Any) -> Duration:
    readable = isinstance(written, str) and re.fullmatch(Duration.PATTERN, written)
    return Duration(written) if readable else DEFAULT_UNDELETE_FOR


def unreadable_cluster(subject: Object) -> StoreCluster:
    """A StoreCluster that is to go, whatever its spec says: who it is, and where its keys are."""
    try:
        metastore = MetastoreOverride.model_validate_json(msgspec.json.encode(subject["spec"].get("metastore")))
    except ValidationError:
        metastore = None
    paused = subject["spec"].get("paused") is True
    known: dict[str, Any] = {"stores": 1, "metastore": metastore, "paused": paused}
    spec = StoreClusterSpec.model_construct(**known)
    return StoreCluster.model_construct(metadata=_parting(subject), spec=spec, status=None)


def _parting(subject: Object) -> ObjectMeta:
    """What is asked of the metadata of an object that is being deleted."""
    metadata = subject["metadata"]
    return ObjectMeta(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        annotations=metadata.get("annotations", {}),
        finalizers=tuple(metadata.get("finalizers", ())),
        deletion_timestamp=metadata["deletionTimestamp"],
    )

"""Resources as keys in etcd, with what an API server would do: uids, generations, refusals, statuses, finalizers.

`/evenkeel.resources/<Kind>/<namespace>/<name>` holds the object as JSON. What is written was validated; what a user may
not change is refused by the same rules as everywhere.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from evenkeel.errors import InvalidInputError
from evenkeel.metastore.api import Delete, KeyValue, Metastore, Put, Txn, unchanged
from evenkeel.model.conditions import timestamp
from evenkeel.model.loading import Resource, parse
from evenkeel.model.partitionassignment import PartitionAssignment, PartitionAssignmentStatus
from evenkeel.model.rebalanceplan import RebalancePlan, RebalancePlanStatus
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus
from evenkeel.model.table import Table, TableStatus
from evenkeel.model.updates import validate_update

__all__ = ["ROOT", "Applied", "ClusterResources", "LocalResources"]

ROOT: Final = "/evenkeel.resources/"
Status = StoreClusterStatus | TableStatus | PartitionAssignmentStatus | RebalancePlanStatus
R = TypeVar("R", bound=Resource)


class Applied(enum.StrEnum):
    """What applying a resource came to, in kubectl's words."""

    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"


class LocalResources:
    """All resources of a local cluster."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    # Reading

    async def get(self, kind: type[R], name: str, namespace: str = "default") -> R | None:
        """One resource, or None."""
        kv = await self._metastore.get(_key(kind.__name__, namespace, name))
        return None if kv is None else _read(kind, kv)

    async def list(self, kind: type[R]) -> list[R]:
        """All resources of a kind."""
        found = await self._metastore.range(f"{ROOT}{kind.__name__}/")
        return [_read(kind, kv) for kv in found.kvs]

    async def changes(self) -> AsyncIterator[None]:
        """Once at the beginning, and again after every change but those of statuses alone."""
        snapshot = await self._metastore.range(ROOT)
        specs = {kv.key: _spec(kv) for kv in snapshot.kvs}
        yield
        async for batch in self._metastore.watch(ROOT, after=snapshot):
            news = False
            for event in batch.events:
                spec = None if event.kv is None else _spec(event.kv)
                news |= specs.get(event.key) != spec
                specs[event.key] = spec
            if news:
                yield

    # Writing

    async def apply(self, resource: Resource) -> Applied:
        """Make the resource what was written; InvalidInputError where that is not allowed."""
        if isinstance(resource, Table):
            await self._check_store_cluster(resource)
        key = _key(resource.kind, resource.metadata.namespace, resource.metadata.name)
        while True:
            kv = await self._metastore.get(key)
            if kv is None:
                if await self._put(key, None, _created(resource)):
                    return Applied.CREATED
                continue
            document = _updated(_read(type(resource), kv), resource, msgspec.json.decode(kv.value))
            if document is None:
                return Applied.UNCHANGED
            if await self._put(key, kv, document):
                return Applied.CONFIGURED

    async def change(self, kind: type[R], name: str, edit: Callable[[dict[str, Any]], None]) -> R:
        """Edit a resource's document; InvalidInputError where there is none, or the change is not allowed."""
        key = _key(kind.__name__, "default", name)
        while True:
            kv = await self._metastore.get(key)
            if kv is None:
                raise InvalidInputError(f"{kind.__name__} {name}: there is none; `evenkeel get` lists what there is")
            before = _read(kind, kv)
            document = msgspec.json.decode(kv.value)
            edit(document)
            after = parse(document, f"{kind.__name__} {name}")
            validate_update(before, after)
            if document["spec"] != msgspec.json.decode(kv.value)["spec"]:
                document["metadata"]["generation"] = before.metadata.generation + 1
            if await self._put(key, kv, document):
                return after  # type: ignore[return-value]

    async def delete(self, kind: type[R], name: str) -> bool:
        """Begin to delete; tables stay until nothing of them is left. Whether there was one."""
        key = _key(kind.__name__, "default", name)
        while True:
            kv = await self._metastore.get(key)
            if kv is None:
                return False
            if kind is not Table:
                op = Delete(key)
                if (await self._metastore.txn(Txn((unchanged(key, kv),), (op,)))).succeeded:
                    return True
                continue
            document = msgspec.json.decode(kv.value)
            document["metadata"].setdefault("deletionTimestamp", _now())
            if await self._put(key, kv, document):
                return True

    async def set_status(self, resource: Resource, status: Status) -> None:
        """Write a status; nothing happens where the resource is gone."""
        key = _key(resource.kind, resource.metadata.namespace, resource.metadata.name)
        written = status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        while True:
            kv = await self._metastore.get(key)
            if kv is None:
                return
            document = msgspec.json.decode(kv.value)
            if document["metadata"].get("uid") != resource.metadata.uid or document.get("status") == written:
                return
            document["status"] = written
            if await self._put(key, kv, document):
                return

    async def remove(self, resource: Resource) -> None:
        """Delete a resource at once."""
        key = _key(resource.kind, resource.metadata.namespace, resource.metadata.name)
        await self._metastore.txn(Txn(success=(Delete(key),)))

    async def _put(self, key: str, before: KeyValue | None, document: dict[str, Any]) -> bool:
        put = Put(key, msgspec.json.encode(document))
        return (await self._metastore.txn(Txn((unchanged(key, before),), (put,)))).succeeded

    async def _check_store_cluster(self, table: Table) -> None:
        wanted = table.spec.store_cluster
        if await self.get(StoreCluster, wanted) is None:
            known = ", ".join(cluster.metadata.name for cluster in await self.list(StoreCluster)) or "none"
            raise InvalidInputError(
                f"Table {table.key}: spec.storeCluster: got {wanted!r}; allowed: a StoreCluster that exists ({known})"
            )


class ClusterResources:
    """The resources of one StoreCluster; implements `evenkeel.controller.resources.Resources`."""

    def __init__(self, resources: LocalResources, name: str) -> None:
        self._all = resources
        self._name = name

    def changes(self) -> AsyncIterator[None]:
        """Once at the beginning, and again after every change of a resource."""
        return self._all.changes()

    async def store_cluster(self) -> StoreCluster | None:
        """The StoreCluster itself."""
        return await self._all.get(StoreCluster, self._name)

    async def tables(self) -> Sequence[Table]:
        """Its tables."""
        return [table for table in await self._all.list(Table) if table.spec.store_cluster == self._name]

    async def assignments(self, table: str) -> Sequence[PartitionAssignment]:
        """The PartitionAssignments of a table."""
        return [found for found in await self._all.list(PartitionAssignment) if found.spec.table == table]

    async def plans(self, table: str) -> Sequence[RebalancePlan]:
        """The RebalancePlans of a table."""
        return [found for found in await self._all.list(RebalancePlan) if found.spec.table == table]

    async def set_status(self, resource: Resource, status: Status) -> None:
        """Write a status."""
        await self._all.set_status(resource, status)

    async def ensure(self, resource: PartitionAssignment | RebalancePlan) -> None:
        """Make a resource where it is not there."""
        if await self._all.get(type(resource), resource.metadata.name) is None:
            await self._all.apply(resource)

    async def gone(self, table: Table) -> None:
        """Nothing is left of a table: let its resources go."""
        name = table.metadata.name
        owned: list[Resource] = [*await self.assignments(name), *await self.plans(name), table]
        for resource in owned:
            await self._all.remove(resource)


def _key(kind: str, namespace: str, name: str) -> str:
    return f"{ROOT}{kind}/{namespace}/{name}"


def _read(kind: type[R], kv: KeyValue) -> R:
    found = parse(msgspec.json.decode(kv.value), kv.key)
    assert isinstance(found, kind)
    return found


def _spec(kv: KeyValue) -> Any:
    document = msgspec.json.decode(kv.value)
    metadata = document["metadata"]
    return (document.get("spec"), metadata.get("deletionTimestamp"), metadata.get("annotations"))


def _created(resource: Resource) -> dict[str, Any]:
    document = resource.document()
    document.pop("status", None)
    document["metadata"] |= {
        "namespace": resource.metadata.namespace,
        "uid": uuid.uuid4().hex[:12],
        "generation": 1,
        "creationTimestamp": _now(),
    }
    return document


def _updated(before: Resource, after: Resource, document: dict[str, Any]) -> dict[str, Any] | None:
    """The stored document with what the user wrote in it; None where that changes nothing."""
    if before.metadata.deletion_timestamp:
        raise InvalidInputError(f"{before.kind} {before.key} is being deleted: wait until it is gone")
    validate_update(before, after)
    wanted = after.document()
    metadata = document["metadata"]
    labels = {name: wanted["metadata"].get(name, {}) for name in ("labels", "annotations")}
    same_spec = before.spec == after.spec
    kept = {name: metadata.get(name, {}) | value for name, value in labels.items()}
    if same_spec and all(metadata.get(name, {}) == value for name, value in kept.items()):
        return None
    document["spec"] = wanted["spec"]
    metadata.update({name: value for name, value in kept.items() if value})
    if not same_spec:
        metadata["generation"] = before.metadata.generation + 1
    return document


def _now() -> str:
    return timestamp(datetime.now(UTC))

"""Resources as keys in etcd, with the semantics of an API server: uids, generations, validation, statuses, finalizers.

The key `/evenkeel.resources/<Kind>/<namespace>/<name>` holds the object as JSON. There is one namespace.
"""

from __future__ import annotations

import enum
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from evenkeel.controller.dropped_table_reconciler import kept_tables
from evenkeel.controller.resources_api import Status
from evenkeel.errors import InvalidInputError
from evenkeel.metastore.metastore_api import Delete, KeyValue, Metastore, Put, Txn, unchanged
from evenkeel.model.conditions import timestamp
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.resource_base import without_entry
from evenkeel.model.resource_loading import Resource, parse
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.model.update_rules import validate_update
from evenkeel.protocol.keys import Keys

__all__ = ["NAMESPACE", "ROOT", "Applied", "ClusterResources", "LocalResources"]

log = logging.getLogger(__name__)

ROOT: Final = "/evenkeel.resources/"
NAMESPACE: Final = "default"
_FINALIZED: Final = (Table, StoreCluster)
"""Kinds that stay, marked as deleted, until they are finalized."""
R = TypeVar("R", bound=Resource)


class Applied(enum.StrEnum):
    """The result of applying a resource, in kubectl's words."""

    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"


class LocalResources:
    """All resources of a local cluster."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    # Reading

    async def get(self, kind: type[R], name: str) -> R | None:
        """Return a resource, or None where there is none of that name."""
        kv = await self._metastore.get(_key(kind, name))
        return None if kv is None else _read(kind, kv)

    async def need(self, kind: type[R], name: str) -> R:
        """Return a resource; raise InvalidInputError, which lists the existing ones, where there is none."""
        found = await self.get(kind, name)
        if found is None:
            existing = ", ".join(resource.metadata.name for resource in await self.all_of(kind)) or "there are none"
            raise InvalidInputError(f"{kind.__name__}: got {name!r}; allowed: one that exists ({existing})")
        return found

    async def all_of(self, kind: type[R], *, prefix: str = "") -> list[R]:
        """Return the resources of a kind whose names start with `prefix`; log and skip unreadable ones."""
        found = await self._metastore.range(_key(kind, prefix))
        return [resource for kv in found.kvs if (resource := _try_to_read(kind, kv)) is not None]

    async def tables(self, store_cluster: str) -> list[Table]:
        """Return the tables of a StoreCluster."""
        return [table for table in await self.all_of(Table) if table.spec.store_cluster == store_cluster]

    async def assignments(self, table: str) -> list[PartitionAssignment]:
        """Return the PartitionAssignments of a table, in order."""
        found = await self.all_of(PartitionAssignment, prefix=f"{table}-")
        return sorted((one for one in found if one.spec.table == table), key=lambda one: one.spec.from_)

    async def plans(self, table: str) -> list[RebalancePlan]:
        """Return the RebalancePlans of a table."""
        return [found for found in await self.all_of(RebalancePlan) if found.spec.table == table]

    async def changes(self) -> AsyncIterator[str | None]:
        """Yield the names of tables whose resources changed, and None, first and whenever all may have changed.

        A new status is not a change.
        """
        snapshot = await self._metastore.range(ROOT)
        seen = {kv.key: _triggers(kv) for kv in snapshot.kvs}
        yield None
        async for batch in self._metastore.watch(ROOT, after=snapshot):
            changed: dict[str | None, None] = {}
            for event in batch.events:
                before = seen.pop(event.key, None)
                now = None if event.kv is None else _triggers(event.kv)
                if now is not None:
                    seen[event.key] = now
                if before != now:
                    changed[_table_of(event.key, now or before)] = None
            for name in changed:
                yield name

    # Writing

    async def apply(self, resource: Resource) -> Applied:
        """Create or update a resource; raise InvalidInputError where that is not allowed."""
        await self._check(resource)
        key = _key(type(resource), resource.metadata.name)
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
        """Edit the document of a resource; raise InvalidInputError where it is missing or the edit is not allowed."""
        key = _key(kind, name)
        while True:
            kv = await self._metastore.get(key)
            before = await self.need(kind, name) if kv is None else _read(kind, kv)
            if kv is None:
                continue
            document = msgspec.json.decode(kv.value)
            edit(document)
            after = parse(document, f"{kind.__name__} {name}")
            assert isinstance(after, kind)
            validate_update(before, after)
            if document["spec"] != msgspec.json.decode(kv.value)["spec"]:
                document["metadata"]["generation"] = before.metadata.generation + 1
            if await self._put(key, kv, document):
                return after

    async def delete(self, kind: type[R], name: str) -> None:
        """Delete a resource; a Table or a StoreCluster is marked as deleted until it is finalized."""
        await self.need(kind, name)
        if kind is StoreCluster and (tables := await self.tables(name)):
            named = ", ".join(table.metadata.name for table in tables[:5])
            raise InvalidInputError(f"StoreCluster {name} has tables ({named}): delete them first")
        if kind is StoreCluster and (kept := await self._kept(name)):
            named = ", ".join(kept[:5])
            raise InvalidInputError(
                f"StoreCluster {name} keeps data of deleted tables ({named}): undelete or purge them first"
            )
        key = _key(kind, name)
        while (kv := await self._metastore.get(key)) is not None:
            if kind not in _FINALIZED:
                if (await self._metastore.txn(Txn((unchanged(key, kv),), (Delete(key),)))).succeeded:
                    return
                continue
            document = msgspec.json.decode(kv.value)
            document["metadata"].setdefault("deletionTimestamp", _now())
            if await self._put(key, kv, document):
                return

    async def _kept(self, store_cluster: str) -> list[str]:
        found = await kept_tables(self._metastore, Keys(namespace=NAMESPACE, store_cluster=store_cluster))
        return [kept.key for kept in found]

    async def set_status(self, resource: Resource, status: Status) -> None:
        """Write a status; does nothing if the resource is gone."""
        key = _key(type(resource), resource.metadata.name)
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
        """Remove a resource at once."""
        await self._metastore.txn(Txn(success=(Delete(_key(type(resource), resource.metadata.name)),)))

    async def _put(self, key: str, before: KeyValue | None, document: dict[str, Any]) -> bool:
        put = Put(key, msgspec.json.encode(document))
        return (await self._metastore.txn(Txn((unchanged(key, before),), (put,)))).succeeded

    async def _check(self, resource: Resource) -> None:
        """Check what depends on the local cluster or on other resources."""
        source, namespace = f"{resource.kind} {resource.metadata.name}", resource.metadata.namespace
        if namespace != NAMESPACE:
            raise InvalidInputError(
                f"{source}: metadata.namespace: got {namespace!r}; allowed: {NAMESPACE}, the only namespace of a local "
                "cluster; remove the field"
            )
        if not isinstance(resource, Table):
            return
        wanted = resource.spec.store_cluster
        cluster = await self.get(StoreCluster, wanted)
        if cluster is None or cluster.metadata.deletion_timestamp:
            known = ", ".join(found.metadata.name for found in await self.all_of(StoreCluster)) or "there are none"
            raise InvalidInputError(
                f"{source}: spec.storeCluster: got {wanted!r}; allowed: a StoreCluster that exists ({known})"
            )


class ClusterResources:
    """The resources of one StoreCluster; implements `evenkeel.controller.resources_api.Resources`."""

    def __init__(self, resources: LocalResources, name: str) -> None:
        self._all = resources
        self._name = name

    def changes(self) -> AsyncIterator[str | None]:
        """Yield what to reconcile: the name of a table, or None for everything."""
        return self._all.changes()

    async def store_cluster(self) -> StoreCluster | None:
        """Return the StoreCluster, or None."""
        return await self._all.get(StoreCluster, self._name)

    async def tables(self) -> Sequence[Table]:
        """Return the tables of the StoreCluster."""
        return await self._all.tables(self._name)

    async def table(self, name: str) -> Table | None:
        """Return a table of the StoreCluster, or None."""
        found = await self._all.get(Table, name)
        return found if found is not None and found.spec.store_cluster == self._name else None

    async def table_exists(self, table: str) -> bool:
        """Whether a table of that name exists in any StoreCluster."""
        return await self._all.get(Table, table) is not None

    async def assignments(self, table: str) -> Sequence[PartitionAssignment]:
        """Return the PartitionAssignments of a table."""
        return await self._all.assignments(table)

    async def plans(self, table: str) -> Sequence[RebalancePlan]:
        """Return the RebalancePlans of a table."""
        return await self._all.plans(table)

    async def set_status(self, resource: Resource, status: Status) -> None:
        """Write a status."""
        await self._all.set_status(resource, status)

    async def ensure(self, resource: PartitionAssignment | RebalancePlan) -> None:
        """Create a resource if it does not exist."""
        if await self._all.get(type(resource), resource.metadata.name) is None:
            await self._all.apply(resource)

    async def remove(self, plan: RebalancePlan) -> None:
        """Remove a RebalancePlan."""
        await self._all.remove(plan)

    async def create(self, table: Table) -> None:
        """Create a Table that is undeleted, if it does not exist."""
        if await self._all.get(Table, table.metadata.name) is None:
            await self._all.apply(table)

    async def remove_from_annotation(self, annotation: str, entry: str) -> None:
        """Remove an entry from an annotation of the StoreCluster."""

        def edit(document: dict[str, Any]) -> None:
            annotations = document["metadata"].get("annotations", {})
            left = without_entry(annotations.get(annotation, ""), entry)
            annotations.pop(annotation, None)
            annotations.update({annotation: left} if left else {})

        await self._all.change(StoreCluster, self._name, edit)

    async def finalize(self, table: Table) -> None:
        """Remove a Table whose data is gone, with its PartitionAssignments and RebalancePlans."""
        name = table.metadata.name
        owned: list[Resource] = [*await self.assignments(name), *await self.plans(name), table]
        for resource in owned:
            await self._all.remove(resource)


class _Triggers(NamedTuple):
    """The parts of a resource whose change triggers a reconciliation."""

    spec: Any
    deletion: str | None
    annotations: dict[str, str] | None


def _key(kind: type, name: str) -> str:
    return f"{ROOT}{kind.__name__}/{NAMESPACE}/{name}"


def _read(kind: type[R], kv: KeyValue) -> R:
    try:
        document = msgspec.json.decode(kv.value)
    except ValueError as error:
        raise InvalidInputError(f"etcd key {kv.key!r} is not valid JSON ({error}); delete the key") from None
    found = parse(document, kv.key)
    assert isinstance(found, kind)
    return found


def _try_to_read(kind: type[R], kv: KeyValue) -> R | None:
    try:
        return _read(kind, kv)
    except InvalidInputError as error:
        log.warning("skipping an unreadable resource: %s", error)
        return None


def _triggers(kv: KeyValue) -> _Triggers | None:
    try:
        document = msgspec.json.decode(kv.value)
        metadata = document["metadata"]
        return _Triggers(document.get("spec"), metadata.get("deletionTimestamp"), metadata.get("annotations"))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _table_of(key: str, seen: _Triggers | None) -> str | None:
    """Return the table that a resource is or belongs to; None if it may concern all tables."""
    kind, _, name = key.removeprefix(ROOT).split("/", 2)
    if kind == "Table":
        return name
    if kind == "StoreCluster" or seen is None or not isinstance(seen.spec, dict):
        return None
    table = seen.spec.get("table")
    return table if isinstance(table, str) else None


def _created(resource: Resource) -> dict[str, Any]:
    document = resource.document()
    document.pop("status", None)
    document["metadata"] |= {
        "namespace": NAMESPACE,
        "uid": uuid.uuid4().hex[:12],
        "generation": 1,
        "creationTimestamp": _now(),
    }
    return document


def _updated(before: Resource, after: Resource, document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the stored document with the user's changes; None if nothing changes."""
    if before.metadata.deletion_timestamp:
        raise InvalidInputError(f"{before.kind} {before.metadata.name} is being deleted; wait until it is gone")
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

"""Reconciles deleted tables whose data is retained, and the StoreCluster's undelete and purge annotations.

Such a table exists only as a record in the metastore, so it does not block the deletion of its namespace. Nothing is
removed while the StoreCluster is paused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from evenkeel.controller.controller_context import ControllerContext
from evenkeel.controller.error_problems import UNAVAILABLE, problem_of
from evenkeel.controller.resources_api import Resources
from evenkeel.controller.table_reconciler import cluster_paused
from evenkeel.errors import EvenkeelError, FencedError, MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue, Metastore
from evenkeel.model.conditions import timestamp
from evenkeel.model.quantities import Duration
from evenkeel.model.resource_base import ObjectMeta
from evenkeel.model.storecluster import DroppedTable, StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.keys import Keys, table_name
from evenkeel.protocol.records import Dropped, PlanHead, TableRecord, decode
from evenkeel.reconcile.dropped_tables import (
    RESTORE_ANNOTATION,
    adopt_kept,
    dropped_table,
    maintain_kept_table,
    to_be_adopted_as_kept,
)
from evenkeel.reconcile.partition_sizes import total_size
from evenkeel.reconcile.readiness import Problem
from evenkeel.reconcile.store_states import leaving
from evenkeel.reconcile.table_steps import drop_table

__all__ = ["PURGE_ANNOTATION", "UNDELETE_ANNOTATION", "DroppedTableReconciler", "Kept", "asked_for", "kept_tables"]

log = logging.getLogger(__name__)

UNDELETE_ANNOTATION: Final = "evenkeel.dev/undelete"
"""On a StoreCluster: deleted tables to restore, as `<name>.<uid>`, separated by commas; removed when done."""
PURGE_ANNOTATION: Final = "evenkeel.dev/purge"
"""On a StoreCluster: deleted tables whose data to remove now, in the same format; removed when done."""
_CLOCK_GRACE_SECONDS: Final = 3600.0
"""How long a controller that just started removes no data: NTP may have to correct its wall clock first."""
_SPEC_BYTES: Final = 16384
"""The longest spec that the status includes; most are a tenth of that."""
_SPECS_BYTES: Final = 262144
"""The total size of specs that the status includes: the API server accepts objects of about 1.5 MB."""
_WAIT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 30.0


class Kept(NamedTuple):
    """A deleted table whose data is retained."""

    key: str
    record: TableRecord


def asked_for(cluster: StoreCluster | None, annotation: str) -> frozenset[str]:
    """Return the tables that an annotation names."""
    written = cluster.metadata.annotations.get(annotation, "") if cluster is not None else ""
    return frozenset(filter(None, (name.strip() for name in written.split(","))))


class DroppedTableReconciler:
    """Reconciles deleted tables."""

    def __init__(self, resources: Resources, context: ControllerContext) -> None:
        self._resources = resources
        self._context = context
        self.kept: dict[str, Kept] = {}
        """By key, the tables found by the last reconciliation of the stores."""
        self._plans: dict[str, int] = {}
        """By key, the newest plan."""
        self._listed: dict[str, DroppedTable] = {}
        """By key, the tables in the status, during an adoption: the metastore may not have them yet."""
        self._seen: dict[str, float] = {}
        """By key, when this process first saw the table, on the monotonic clock."""
        self.blocked: dict[str, Problem] = {}
        """By key, why its replicas cannot leave draining stores."""

    async def adopt(self, cluster: StoreCluster, tables: Iterable[Table], *, request: str) -> int:
        """During an adoption, adopt every table without a Table; return how many are left."""
        context, listed = self._context, _listed(cluster)
        owned = {await context.key_of(table) for table in tables}
        recorded = {kv.key.removeprefix(context.keys.table("")) for kv in await context.records()}
        left = 0
        for key in sorted((recorded | listed.keys()) - owned):
            try:
                snapshot = await context.snapshot(key)
                if not to_be_adopted_as_kept(snapshot, listed.get(key), request):
                    continue
                deleted = key in listed or (snapshot.record is not None and snapshot.record.dropped is not None)
                if not deleted and await self._resources.table_exists(table_name(key)):
                    continue  # it may belong to a Table that cannot be read
                if cluster_paused(cluster):
                    left += 1
                    continue
                await self._adopt(key, listed.get(key), request)
            except MalformedRecordError as error:
                log.warning("cannot adopt the deleted table %s: %s", key, error)
        return left

    async def _adopt(self, key: str, listed: DroppedTable | None, request: str) -> None:
        context = self._context
        epoch, now = context.held.compare, context.steady()
        await context.drive(adopt_kept(listed, keys=context.keys, table=key, epoch=epoch, request=request, now=now))
        log.info("adopted the deleted table %s", key)

    async def find(self) -> list[str]:
        """Return the keys of all tables to reconcile: those with retained data, and dropped ones without a Table."""
        context = self._context
        kept = {kept.key: kept for kept in _kept(await context.records(), context.keys)}
        self._plans = {key: await self._newest_plan(found) for key, found in kept.items()}
        self.kept = kept
        self._listed = _listed(await self._resources.store_cluster()) if context.adopting else {}
        prefix = context.keys.tombstone("")
        dropped = [kv.key.removeprefix(prefix) for kv in await context.tombstones()]
        return sorted({*self.kept, *dropped})

    async def _newest_plan(self, kept: Kept) -> int:
        floor = kept.record.plan_floor
        kv = await self._context.get(self._context.keys.plan_head(kept.key))
        try:
            return floor if kv is None else max(floor, decode(PlanHead, kv.value, key=kv.key).n)
        except MalformedRecordError as error:
            log.warning("%s", error)
            return floor

    async def reconcile(self, key: str) -> float:
        """Restore, maintain or drop a table; return in how many seconds to do so again, or 0."""
        await self._context.begin()
        try:
            again = await self._reconcile(key)
        except (FencedError, *UNAVAILABLE):
            raise
        except EvenkeelError as error:
            log.warning("reconciling the deleted table %s failed; retrying in %g s: %s", key, _RETRY_SECONDS, error)
            self.blocked[key] = problem_of(error)
            return _RETRY_SECONDS
        self.blocked.pop(key, None)
        return again

    async def _reconcile(self, key: str) -> float:
        if self._context.adopting:
            return _WAIT_SECONDS  # until it is adopted, the metastore may be wrong about it
        snapshot = await self._context.snapshot(key)
        cluster = await self._resources.store_cluster()
        if snapshot.record is None or snapshot.record.dropped is None:
            self._forget(key)
            dropping = snapshot.tombstone_kv is not None and not await self._has_table(key)
            return await self._drop(key, cluster) if dropping else await self._clear_annotations(key, cluster)
        if cluster is None or cluster_paused(cluster):
            return 0.0
        if key in asked_for(cluster, UNDELETE_ANNOTATION):
            await self._undelete(Kept(key, snapshot.record), cluster)
            return _WAIT_SECONDS
        left = self._seconds_left(key, snapshot.record.dropped)
        if key in asked_for(cluster, PURGE_ANNOTATION) or left == 0.0:
            return await self._drop(key, cluster)
        table = dropped_table(key, snapshot.record, namespace=cluster.metadata.namespace)
        context = self._context
        version, epoch = await context.check_version(), context.held.compare
        await context.place(maintain_kept_table(table, keys=context.keys, key=key, epoch=epoch, version=version))
        return left or 0.0

    def _seconds_left(self, key: str, dropped: Dropped) -> float | None:
        """Return for how many seconds the data is still retained; None if it is retained until it is purged.

        Removal is final, so it must not follow from a wall clock that was wrong at the start or is wrong now.
        """
        context, until = self._context, dropped.until
        now = context.clock.now()
        seen = self._seen.setdefault(key, now)
        if until is None:
            return None
        sure = seen + min(_CLOCK_GRACE_SECONDS, until - dropped.since)
        return max(0.0, sure - now, until - min(context.steady(), context.wall_clock()))

    def _forget(self, key: str) -> None:
        self.kept.pop(key, None)
        self._seen.pop(key, None)

    async def _has_table(self, key: str) -> bool:
        """Whether a Table owns this data, and so drops it."""
        table = await self._resources.table(table_name(key))
        return table is not None and await self._context.key_of(table) == key

    async def _drop(self, key: str, cluster: StoreCluster | None) -> float:
        context = self._context
        known = (await context.stores()).names

        def retired(store: str) -> bool:
            return store not in known and bool(leaving(cluster, (store,)))

        epoch, complete = context.held.compare, await self._all_registered(cluster)
        dropping = drop_table(
            keys=context.keys, table=key, epoch=epoch, retired=retired, only_kept=True, await_publication=not complete
        )
        if not await context.drive(dropping):
            return _WAIT_SECONDS
        self._forget(key)
        log.info("removed the data of the deleted table %s", key)
        return await self._clear_annotations(key, cluster)

    async def _all_registered(self, cluster: StoreCluster | None) -> bool:
        """Whether all stores of the StoreCluster's spec are registered."""
        if cluster is None:
            return False
        registered = (await self._context.stores()).registered
        return all(f"{cluster.metadata.name}-{number}" in registered for number in range(cluster.spec.stores))

    async def _undelete(self, kept: Kept, cluster: StoreCluster) -> None:
        """Create a Table that restores the data, unless a Table of that name exists."""
        name = table_name(kept.key)
        if await self._resources.table_exists(name):
            log.warning("cannot undelete table %s: a Table %s exists; delete it first", kept.key, name)
            await self._resources.remove_from_annotation(UNDELETE_ANNOTATION, kept.key)
            return
        table = dropped_table(kept.key, kept.record, namespace=cluster.metadata.namespace)
        namespace, annotations = table.metadata.namespace, {RESTORE_ANNOTATION: table.metadata.uid}
        metadata = ObjectMeta(name=name, namespace=namespace, annotations=annotations)
        await self._resources.create(Table(metadata=metadata, spec=table.spec))
        await self._resources.remove_from_annotation(UNDELETE_ANNOTATION, kept.key)

    async def _clear_annotations(self, key: str, cluster: StoreCluster | None) -> float:
        """Remove a table from the undelete and purge annotations: nothing is left to do for it."""
        for annotation in (UNDELETE_ANNOTATION, PURGE_ANNOTATION):
            if key in asked_for(cluster, annotation):
                await self._resources.remove_from_annotation(annotation, key)
        return 0.0

    def lost_after(self) -> dict[str, float]:
        """Return, by key, for how many seconds a store may be lost before its replicas are replaced."""
        specs = {key: msgspec.json.decode(kept.record.spec) for key, kept in self.kept.items()}
        found = {key: spec.get("movement", {}).get("lostAfter", "10m") for key, spec in specs.items()}
        return {key: Duration(lost_after).seconds for key, lost_after in found.items()}

    def described(self) -> tuple[DroppedTable, ...]:
        """Return the tables for the StoreCluster's status: those retained until purged first, then the newest."""
        lost = [listed for key, listed in self._listed.items() if key not in self.kept]
        found = [*lost, *(self._describe(kept) for kept in self.kept.values())]
        newest = sorted(found, key=lambda dropped: dropped.deleted_at, reverse=True)
        return tuple(_within_budget(sorted(newest, key=lambda dropped: dropped.kept_until is not None)))

    def _describe(self, kept: Kept) -> DroppedTable:
        name, _, uid = kept.key.partition(".")
        assert kept.record.dropped is not None
        since, until = kept.record.dropped.since, kept.record.dropped.until
        return DroppedTable(
            table=name,
            uid=uid,
            deleted_at=_timestamp(since),
            kept_until=_timestamp(until) if until is not None else None,
            bytes=total_size(self._context.reports.sizes(kept.key), range(kept.record.partitions)),
            plan=self._plans.get(kept.key, 0),
            spec=bytes(kept.record.spec).decode(),
        )


def _listed(cluster: StoreCluster | None) -> dict[str, DroppedTable]:
    """Return, by key, the deleted tables in a StoreCluster's status."""
    listed = cluster.status.dropped if cluster is not None and cluster.status is not None else ()
    return {f"{dropped.table}.{dropped.uid}": dropped for dropped in listed}


def _within_budget(listed: Iterable[DroppedTable]) -> Iterator[DroppedTable]:
    """Leave out specs that would make the status too large for the API server."""
    left = _SPECS_BYTES
    for dropped in listed:
        size = len((dropped.spec or "").encode())
        fits = size <= min(left, _SPEC_BYTES)
        left -= size if fits else 0
        yield dropped if fits else dropped.model_copy(update={"spec": None})


def _timestamp(seconds: float) -> str:
    return timestamp(datetime.fromtimestamp(seconds, UTC))


def _kept(records: Iterable[KeyValue], keys: Keys) -> Iterator[Kept]:
    for kv in records:
        if b'"dropped"' not in kv.value:
            continue
        try:
            record = decode(TableRecord, kv.value, key=kv.key)
        except MalformedRecordError as error:
            log.warning("%s", error)
            continue
        if record.dropped is not None:
            yield Kept(kv.key.removeprefix(keys.table("")), record)


async def kept_tables(metastore: Metastore, keys: Keys) -> list[Kept]:
    """Return the deleted tables with retained data; they block the deletion of their StoreCluster."""
    return list(_kept((await metastore.range(keys.table(""))).kvs, keys))

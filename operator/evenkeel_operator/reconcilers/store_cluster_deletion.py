"""Steps that delete a StoreCluster; StoreClusterReconciler runs them in order.

A step returns None to go on with the next one, or in how many seconds to try again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from evenkeel.controller.dropped_table_reconciler import kept_tables
from evenkeel.controller.table_reconciler import cluster_paused, is_force_deleted, pause_of
from evenkeel.errors import (
    ApiForbiddenError,
    ClusterMismatchError,
    InvalidInputError,
    MalformedRecordError,
    MetastoreError,
)
from evenkeel.kube.object_kinds import NAMESPACE, STATEFUL_SET, STORE_CLUSTER, TABLE
from evenkeel.metastore.metastore_api import Delete, Metastore, Txn
from evenkeel.metastore.operator_epoch import acquire_epoch
from evenkeel.model.conditions import Reason, timestamp
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import TableRecord, TableState, decode
from evenkeel.reconcile.desired_table import table_key
from evenkeel.reconcile.dropped_tables import retention_of
from evenkeel.reconcile.readiness import Problem
from evenkeel_operator.kube.object_cache import Key, key_of
from evenkeel_operator.kube.resource_reader import FINALIZER
from evenkeel_operator.manifests.object_names import metadata_of, written_object
from evenkeel_operator.reconcilers.client_secrets import ClientSecrets
from evenkeel_operator.reconcilers.cluster_lookup import (
    cluster_key,
    follows_epoch,
    metastore_keys,
    pods_of,
    stateful_set_of,
)
from evenkeel_operator.reconcilers.kube_resources import deleted_table, remove_finalizer
from evenkeel_operator.reconcilers.operator_context import OperatorContext
from evenkeel_operator.reconcilers.store_cluster_objects import SOON_SECONDS, ClusterPass
from evenkeel_operator.reconcilers.volume_claims import VolumeClaims

__all__ = ["StoreClusterDeletion"]

log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 10 * SOON_SECONDS
_NAMED: Final = 5
"""The number of tables that a message names."""
_FOREGROUND: Final = "foregroundDeletion"
"""Finalizer with which the garbage collector deletes all dependents first, even if they are recreated."""
_UNREACHABLE_SECONDS: Final = 60.0
"""Time that a deletion waits for an unreachable etcd once the pods are gone."""
_PAUSED: Final = "its deletion waits because it is paused; resume it"


class StoreClusterDeletion:
    """The steps; `keep_running` reconciles the objects of a StoreCluster whose deletion has to wait."""

    def __init__(self, context: OperatorContext, keep_running: Callable[[ClusterPass], Awaitable[None]]) -> None:
        self._context = context
        self._keep_running = keep_running
        self._clients = ClientSecrets(context.kube, context.cache, context.applier)
        self._volumes = VolumeClaims(context.kube, context.cache)
        self._unreachable_since: dict[Key, datetime] = {}

    def forget(self, key: Key) -> None:
        """Forget a StoreCluster that is gone."""
        self._unreachable_since.pop(key, None)

    async def wait_for_tables(self, current: ClusterPass) -> float | None:
        """Wait for the Tables. Stores confirm a drop, so a Table whose stores were deleted first need not wait."""
        context, cluster = self._context, current.cluster
        owned = context.cache.owned(TABLE, cluster.metadata.namespace, cluster.metadata.name)
        tables = [table for table in owned if FINALIZER in table["metadata"].get("finalizers", ())]
        if not tables:
            return None
        await self._ensure_controller(cluster)
        if remaining := [table for table in tables if "deletionTimestamp" not in table["metadata"]]:
            names = ", ".join(table["metadata"]["name"] for table in remaining[:_NAMED])
            message = f"the StoreCluster is deleted after its tables; delete {names}"
            await self._stay(current, Problem(Reason.TABLES_REMAIN, message))
            return _WAIT_SECONDS
        live = stateful_set_of(context.cache, cluster)
        if live is None or "deletionTimestamp" in live["metadata"] or is_force_deleted(cluster):
            for table in tables:
                if await self._has_nothing_to_keep(cluster, deleted_table(context.reader, table)):
                    await remove_finalizer(context.kube, context.cache, TABLE, key_of(table))
        return _WAIT_SECONDS

    async def wait_for_kept_data(self, current: ClusterPass) -> float | None:
        """Wait for kept data of deleted tables, unless the deletion is forced or the namespace is deleted."""
        cluster = current.cluster
        if is_force_deleted(cluster):
            return None
        kept = await self._kept(current)
        if not kept or await self._namespace_ends(cluster):
            return None
        await self._ensure_controller(cluster)
        named = ", ".join(f"{name} until {until or 'it is purged'}" for name, until in sorted(kept.items())[:_NAMED])
        message = (
            f"data of deleted tables is kept: {named}; `kubectl evenkeel undelete` restores and `kubectl evenkeel "
            "purge` removes it, `kubectl evenkeel force-delete "
            f"storecluster/{cluster.metadata.name}` deletes everything now"
        )
        if not self._context.controllers.following(cluster_key(cluster)):
            message += "; this is known from the status only, because the etcd that was followed does not confirm it"
        reason = Reason.TABLES_REMAIN
        if cluster_paused(cluster):
            reason, message = Reason.PAUSED, f"{_PAUSED}; {message}"
        await self._stay(current, Problem(reason, message))
        return _WAIT_SECONDS

    async def stop_controller(self, current: ClusterPass) -> float | None:
        """Stop the controller of the tables."""
        await self._context.controllers.stop(cluster_key(current.cluster))
        return None

    async def wait_while_paused(self, current: ClusterPass) -> float | None:
        """Delete nothing while paused. The end of a namespace does not wait: it deletes all volumes anyway."""
        cluster = current.cluster
        if not cluster_paused(cluster) or is_force_deleted(cluster) or await self._namespace_ends(cluster):
            return None
        message = f"{_PAUSED} to delete its pods, volumes and keys"
        self._context.cluster_statuses.publish_problem(current.subject, Problem(Reason.PAUSED, message))
        return _WAIT_SECONDS

    async def delete_pods(self, current: ClusterPass) -> float | None:
        """Delete the StatefulSet, and wait until the pods are gone."""
        cache, cluster = self._context.cache, current.cluster
        if stateful_set_of(cache, cluster) is None and not pods_of(cache, cluster):
            return None
        metadata = metadata_of(cluster, cluster.metadata.name)
        await self._context.applier.delete(written_object(STATEFUL_SET, metadata))
        return None if is_force_deleted(cluster) else SOON_SECONDS

    async def delete_metastore_keys(self, current: ClusterPass) -> float | None:
        """Delete all keys of the StoreCluster; wait for an unreachable etcd, but not for ever."""
        cluster = current.cluster
        keys, now = metastore_keys(cluster), self._context.wall_clock()
        try:
            metastore = await self._context.metastores.of(cluster)
            await self._check_followed(cluster, metastore)
            epoch = await acquire_epoch(metastore, keys.epoch, "cleaning")
            await metastore.txn(Txn((epoch.compare,), (Delete(keys.root, prefix=True),)))
        except (MetastoreError, InvalidInputError) as error:
            since = self._unreachable_since.setdefault(cluster_key(cluster), now)
            if (now - since).total_seconds() < _UNREACHABLE_SECONDS:
                return None if is_force_deleted(cluster) else SOON_SECONDS
            log.warning("deleting StoreCluster %s, though its keys may remain in etcd: %s", cluster.key, error)
        return None

    async def delete_volumes(self, current: ClusterPass) -> float | None:
        """Delete the volume claims."""
        await self._volumes.delete_all(current.cluster)
        return None

    async def delete_client_secrets(self, current: ClusterPass) -> float | None:
        """Delete the client Secrets in other namespaces."""
        await self._clients.delete(current.cluster)
        return None

    async def delete_certificates(self, current: ClusterPass) -> float | None:
        """Delete certificates that are not garbage-collected."""
        await self._context.certificates.clean(current.cluster)
        return None

    async def remove_finalizer(self, current: ClusterPass) -> float | None:
        """Remove the finalizer, so that the API server removes the StoreCluster."""
        await remove_finalizer(self._context.kube, self._context.cache, STORE_CLUSTER, cluster_key(current.cluster))
        log.info("deleted StoreCluster %s", current.cluster.key)
        return None

    async def _stay(self, current: ClusterPass, problem: Problem) -> None:
        """Report what the deletion waits for, and keep the stores running, so that kept data can be restored."""
        context, cluster = self._context, current.cluster
        try:
            context.reader.read(StoreCluster, current.subject)
        except InvalidInputError:
            context.cluster_statuses.publish_problem(current.subject, problem)
            return
        current.problems.append(problem)
        held = cluster_paused(cluster) or _FOREGROUND in cluster.metadata.finalizers
        if not held and not await self._namespace_ends(cluster):
            await self._keep_running(current)
        context.cluster_statuses.publish(cluster, current.problems)

    async def _kept(self, current: ClusterPass) -> dict[str, str]:
        """Return, by table, until when its data is kept; an empty time means until it is purged.

        The status counts too: etcd may be unreachable, or another one that has no record of kept data.
        """
        cluster, subject = current.cluster, current.subject
        statuses = (subject.get("status") or {}, self._context.statuses.of(subject))
        listed = [found for status in statuses for found in status.get("dropped", ())]
        kept = {f"{found['table']}.{found['uid']}": str(found.get("keptUntil") or "") for found in listed}
        try:
            records = await kept_tables(await self._context.metastores.of(cluster), metastore_keys(cluster))
        except (MetastoreError, InvalidInputError) as error:
            log.warning("kept data of StoreCluster %s is known from its status only: %s", cluster.key, error)
            records = []
        for key, record in records:
            until = record.dropped.until if record.dropped is not None else None
            kept[key] = timestamp(datetime.fromtimestamp(until, UTC)) if until is not None else ""
        return kept

    async def _ensure_controller(self, cluster: StoreCluster) -> None:
        """Start the controller; without a way to reach etcd the deletion continues as far as it can."""
        try:
            await self._context.controllers.ensure(cluster)
        except InvalidInputError as error:
            log.warning("cannot start the controller of StoreCluster %s: %s", cluster.key, error)

    async def _namespace_ends(self, cluster: StoreCluster) -> bool:
        namespace = cluster.metadata.namespace
        try:
            found = await self._context.kube.get(NAMESPACE, namespace)
        except ApiForbiddenError as error:
            log.warning("cannot find out whether namespace %s is being deleted: %s", namespace, error)
            return False
        return found is None or "deletionTimestamp" in found["metadata"]

    async def _has_nothing_to_keep(self, cluster: StoreCluster, table: Table) -> bool:
        """Whether a deleted Table may go without its stores. If its data is to be kept, the controller records that.

        Recording takes the etcd that was followed; the Table waits for it.
        """
        if is_force_deleted(cluster) or await self._namespace_ends(cluster):
            return True
        if retention_of(table.spec, now=0.0).until == 0.0 and not pause_of(table, cluster):
            return True
        if not self._context.controllers.following(cluster_key(cluster)):
            return False
        try:
            metastore, keys = await self._context.metastores.of(cluster), metastore_keys(cluster)
            ready, epoch = await _is_ready(metastore, keys, table), await metastore.get(keys.epoch)
        except (MetastoreError, InvalidInputError, MalformedRecordError) as error:
            log.warning("Table %s waits, because its data may have to be kept: %s", table.key, error)
            return False
        return not ready and follows_epoch(self._context.controllers, cluster, epoch)

    async def _check_followed(self, cluster: StoreCluster, metastore: Metastore) -> None:
        """Raise ClusterMismatchError if another etcd answers: its keys may belong to another StoreCluster."""
        status = (self._context.cache.get(STORE_CLUSTER, *cluster_key(cluster)) or {}).get("status") or {}
        followed = (status.get("metastore") or {}).get("clusterId", "")
        answers = f"{await metastore.cluster_id():x}"
        if followed not in ("", answers):
            raise ClusterMismatchError(f"etcd cluster {answers} answers, but {followed} was followed")


async def _is_ready(metastore: Metastore, keys: Keys, table: Table) -> bool:
    """Whether the metastore has the record of a table with data, neither being created nor dropped."""
    restored = await metastore.get(keys.restored(table_key(table)))
    key = table_key(table) if restored is None else decode(str, restored.value, key=restored.key)
    record = await metastore.get(keys.table(key))
    return record is not None and decode(TableRecord, record.value, key=record.key).state is TableState.READY

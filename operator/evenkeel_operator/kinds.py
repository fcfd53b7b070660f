"""The kinds that the operator watches, each declared once.

Watches, sweeps, the cache, work queues, reconcilers, Events and the metrics per kind are derived from `KINDS`. For a
new CRD, add an entry here and its reconciler; docs/development.md lists the steps outside of the operator. The chart's
RBAC rules are tested against this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from evenkeel.kube.object_kinds import (
    NODE,
    PARTITION_ASSIGNMENT,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    REBALANCE_PLAN,
    STATEFUL_SET,
    STORE_CLUSTER,
    TABLE,
    Kind,
    Object,
)
from evenkeel.model.conditions import ConditionType
from evenkeel.model.partitionassignment import PartitionAssignmentStatus
from evenkeel.model.rebalanceplan import RebalancePlanStatus
from evenkeel.model.resource_base import StatusModel
from evenkeel.model.storecluster import StoreClusterStatus
from evenkeel.model.table import TableStatus
from evenkeel_operator.kube.object_cache import Cache, Key, key_of
from evenkeel_operator.manifests.object_names import MANAGED, STORE_CLUSTER_LABEL
from evenkeel_operator.reconcilers.operator_context import OperatorContext, Reconciler
from evenkeel_operator.reconcilers.store_cluster_reconciler import StoreClusterReconciler
from evenkeel_operator.reconcilers.table_resource_reconciler import TableResourceReconciler

__all__ = [
    "KINDS",
    "OWNER_FIELDS",
    "QUIET_CONDITIONS",
    "Enqueue",
    "Notify",
    "ReconciledKind",
    "WatchedKind",
    "effects_of",
    "watched_kinds",
]


class Enqueue(NamedTuple):
    """Reconcile an object."""

    kind: Kind
    key: Key


class Notify(NamedTuple):
    """Notify the controller of a StoreCluster of a changed table, or (None) of a change that concerns all tables."""

    cluster: Key
    table: str | None = None


Effects = Iterator[Enqueue | Notify]


class ReconciledKind(msgspec.Struct, frozen=True, kw_only=True):
    """The reconciler of a kind, and what logs and metrics call its objects."""

    reconciler: Callable[[OperatorContext], Reconciler]
    log_field: str
    gauge: str
    """Name of the metric with the number of objects, without its prefix."""


class WatchedKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind that the operator watches."""

    kind: Kind
    on_change: Callable[[Cache, Object, bool], Effects]
    """What follows from a change of an object; the flag is True if the object is gone."""
    selector: str = ""
    """Label selector of the watch."""
    owner_field: str = ""
    """The immutable field of the spec that names the owner; empty if the cache has no index by owner."""
    finalized: bool = False
    """Whether the operator adds its finalizer."""
    status: type[StatusModel] | None = None
    """The status that the operator writes; None if another controller writes it."""
    conditions: frozenset[ConditionType] = frozenset()
    """Types of the conditions in that status."""
    quiet: frozenset[ConditionType] = frozenset()
    """Conditions without Events, because Events of the owner report the same."""
    reconciled: ReconciledKind | None = None
    """None if changes only affect other objects."""
    status_matters: bool = False
    """Whether a change of only the status has effects."""
    needs_node_access: bool = False
    """Whether the kind is watched only if the operator may read Nodes."""


# What follows from a change


def _store_cluster_changed(cache: Cache, subject: Object, gone: bool) -> Effects:
    namespace, name = key_of(subject)
    yield Enqueue(STORE_CLUSTER, (namespace, name))
    yield Notify((namespace, name))
    for table in cache.owned(TABLE, namespace, name):
        yield Enqueue(TABLE, key_of(table))


def _table_changed(cache: Cache, subject: Object, gone: bool) -> Effects:
    namespace, name = key_of(subject)
    cluster = (namespace, str(subject["spec"].get("storeCluster", "")))
    yield Enqueue(TABLE, (namespace, name))
    yield Notify(cluster, name)
    if gone or "deletionTimestamp" in subject["metadata"]:
        yield Enqueue(STORE_CLUSTER, cluster)


def _object_of_table_changed(cache: Cache, subject: Object, gone: bool) -> Effects:
    namespace, name = subject["metadata"]["namespace"], str(subject["spec"].get("table", ""))
    table = cache.get(TABLE, namespace, name)
    if table is not None:
        yield Notify((namespace, str(table["spec"].get("storeCluster", ""))), name)
        return
    # Any controller of the namespace can report that the table is missing.
    for cluster in cache.all(STORE_CLUSTER, namespace):
        yield Notify(key_of(cluster), name)


def _object_of_cluster_changed(cache: Cache, subject: Object, gone: bool) -> Effects:
    metadata = subject["metadata"]
    yield Enqueue(
        STORE_CLUSTER, (metadata.get("namespace", ""), metadata.get("labels", {}).get(STORE_CLUSTER_LABEL, ""))
    )


def _node_changed(cache: Cache, subject: Object, gone: bool) -> Effects:
    for cluster in cache.all(STORE_CLUSTER):
        yield Enqueue(STORE_CLUSTER, key_of(cluster))


# The kinds

_KSTATUS: Final[frozenset[ConditionType]] = frozenset(("Ready", "Reconciling", "Stalled"))

KINDS: Final = (
    WatchedKind(
        kind=STORE_CLUSTER,
        on_change=_store_cluster_changed,
        finalized=True,
        status=StoreClusterStatus,
        conditions=_KSTATUS | {"Progressing", "Degraded", "MetastoreMismatch"},
        reconciled=ReconciledKind(reconciler=StoreClusterReconciler, log_field="store_cluster", gauge="store_clusters"),
    ),
    WatchedKind(
        kind=TABLE,
        on_change=_table_changed,
        owner_field="storeCluster",
        finalized=True,
        status=TableStatus,
        conditions=_KSTATUS | {"Available", "Progressing", "Balanced", "Degraded"},
        reconciled=ReconciledKind(reconciler=TableResourceReconciler, log_field="table", gauge="tables"),
    ),
    WatchedKind(
        kind=PARTITION_ASSIGNMENT,
        on_change=_object_of_table_changed,
        owner_field="table",
        status=PartitionAssignmentStatus,
        conditions=_KSTATUS | {"Accepted"},
        quiet=frozenset(("Ready",)),
    ),
    WatchedKind(
        kind=REBALANCE_PLAN,
        on_change=_object_of_table_changed,
        owner_field="table",
        status=RebalancePlanStatus,
        conditions=_KSTATUS | {"Accepted", "Approved"},
    ),
    WatchedKind(kind=STATEFUL_SET, on_change=_object_of_cluster_changed, selector=MANAGED, status_matters=True),
    WatchedKind(kind=POD, on_change=_object_of_cluster_changed, selector=MANAGED, status_matters=True),
    WatchedKind(
        kind=PERSISTENT_VOLUME_CLAIM, on_change=_object_of_cluster_changed, selector=MANAGED, status_matters=True
    ),
    WatchedKind(kind=NODE, on_change=_node_changed, needs_node_access=True),
)

OWNER_FIELDS: Final = {watched.kind: watched.owner_field for watched in KINDS if watched.owner_field}
QUIET_CONDITIONS: Final = {watched.kind.name: watched.quiet for watched in KINDS if watched.quiet}
_BY_KIND: Final = {watched.kind: watched for watched in KINDS}


def watched_kinds(*, nodes: bool) -> tuple[WatchedKind, ...]:
    """Return the kinds to watch, with or without Nodes."""
    return tuple(watched for watched in KINDS if nodes or not watched.needs_node_access)


def effects_of(cache: Cache, kind: Kind, before: Object | None, after: Object | None) -> Effects:
    """Return what follows from a change in the cache."""
    subject = after if after is not None else before
    watched = _BY_KIND[kind]
    if subject is not None and _matters(watched, before, after):
        yield from watched.on_change(cache, subject, after is None)


def _matters(watched: WatchedKind, before: Object | None, after: Object | None) -> bool:
    """Whether a change is more than a status that the operator wrote, or the heartbeat of a Node."""
    if before is None or after is None or watched.status_matters:
        return True
    fields = ("finalizers", "deletionTimestamp", "annotations", "labels", "uid")
    metadata = [[subject["metadata"].get(field) for field in fields] for subject in (before, after)]
    return metadata[0] != metadata[1] or before.get("spec") != after.get("spec")

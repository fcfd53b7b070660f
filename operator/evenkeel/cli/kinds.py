"""Kinds as people type them, and the columns each is listed with."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from evenkeel.errors import InvalidInputError
from evenkeel.model.conditions import Conditions
from evenkeel.model.loading import Resource
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus
from evenkeel.model.table import Table, TableStatus

__all__ = ["HEADS", "kind_of", "row_of", "split_name"]

_NAMES: Final[dict[str, type[Resource]]] = {
    "storecluster": StoreCluster,
    "storeclusters": StoreCluster,
    "sc": StoreCluster,
    "table": Table,
    "tables": Table,
    "tbl": Table,
    "partitionassignment": PartitionAssignment,
    "partitionassignments": PartitionAssignment,
    "pa": PartitionAssignment,
    "rebalanceplan": RebalancePlan,
    "rebalanceplans": RebalancePlan,
    "rp": RebalancePlan,
}

HEADS: Final[dict[type[Resource], tuple[str, ...]]] = {
    StoreCluster: ("NAME", "READY", "STORES", "TABLES", "REPLICAS", "LOST", "AGE"),
    Table: ("NAME", "READY", "PARTITIONS", "REPLICAS", "MOVING", "LEADERLESS", "PLAN", "PROGRESS", "AGE"),
    PartitionAssignment: ("NAME", "TABLE", "FROM", "PARTITIONS", "MOVING", "LEADERLESS", "AGE"),
    RebalancePlan: ("NAME", "TABLE", "NUMBER", "STATE", "MOVES", "AGE"),
}


def kind_of(text: str) -> type[Resource]:
    """The kind that somebody typed."""
    kind = _NAMES.get(text.lower())
    if kind is None:
        raise InvalidInputError(
            f"kind: got {text!r}; allowed: storeclusters, tables, partitionassignments, rebalanceplans"
        )
    return kind


def split_name(text: str, *, default: str = "table") -> tuple[type[Resource], str]:
    """`table/orders`, or `orders` alone where the kind goes without saying."""
    kind, slash, name = text.rpartition("/")
    return kind_of(kind if slash else default), name


def row_of(resource: Resource) -> Sequence[object]:
    """One line of a listing."""
    return (resource.metadata.name, *_cells(resource), _age(resource.metadata.creation_timestamp))


def _cells(resource: Resource) -> Sequence[object]:
    match resource:
        case StoreCluster():
            return _store_cluster(resource)
        case Table():
            return _table(resource)
        case PartitionAssignment(status=status, spec=spec):
            counts = (len(status.partitions), status.moving, status.leaderless) if status else (0, 0, 0)
            return (spec.table, spec.from_, *counts)
        case RebalancePlan(status=status, spec=spec):
            state, moves = (status.state, status.totals.moves) if status else ("Computing", 0)
            return (spec.table, spec.number or "-", state, moves)


def _store_cluster(cluster: StoreCluster) -> Sequence[object]:
    status = cluster.status or StoreClusterStatus()
    stores = f"{status.ready_stores}/{cluster.spec.stores}"
    lost = ",".join(status.lost) or "-"
    return (_holds(status.conditions, "Ready"), stores, status.tables, status.replicas, lost)


def _table(table: Table) -> Sequence[object]:
    status = table.status or TableStatus(leaderless=table.spec.partitions)
    progress = f"{status.progress.percentage}%" if status.progress else "-"
    replicas = f"{status.replicas}/{table.spec.replicas}"
    counts = (status.moving, status.leaderless, status.plan)
    return (_holds(status.conditions, "Ready"), table.spec.partitions, replicas, *counts, progress)


def _holds(conditions: Conditions, kind: str) -> str:
    return next((condition.status for condition in conditions if condition.type == kind), "Unknown")


def _age(created: str) -> str:
    if not created:
        return "-"
    began = datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    seconds = max(0, int((datetime.now(UTC) - began).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"

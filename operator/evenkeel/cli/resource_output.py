"""Kinds as users type them, and the columns of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from evenkeel.cli.terminal_output import Listing, span
from evenkeel.errors import InvalidInputError
from evenkeel.model.conditions import DERIVED_CONDITIONS, Conditions, parse_timestamp
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan, RebalancePlanStatus
from evenkeel.model.resource_loading import Resource
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus
from evenkeel.model.table import Table, TableStatus

__all__ = ["conditions_of", "display_name", "kind_of", "listing", "notes_of", "split_name"]

_NAMES: Final[dict[str, type[Resource]]] = {
    **dict.fromkeys(("storecluster", "storeclusters", "ekc", "sc"), StoreCluster),
    **dict.fromkeys(("table", "tables", "ekt", "tbl"), Table),
    **dict.fromkeys(("partitionassignment", "partitionassignments", "eka", "pa"), PartitionAssignment),
    **dict.fromkeys(("rebalanceplan", "rebalanceplans", "ekp", "rp", "plan", "plans"), RebalancePlan),
}
_HEADS: Final[dict[type[Resource], tuple[str, ...]]] = {
    StoreCluster: ("NAME", "READY", "STORES", "TABLES", "REPLICAS", "VERSION", "LOST", "AGE"),
    Table: ("NAME", "READY", "PARTITIONS", "REPLICAS", "MOVING", "LEADERLESS", "PLAN", "PROGRESS", "AGE"),
    PartitionAssignment: ("NAME", "TABLE", "FROM", "PARTITIONS", "MOVING", "LEADERLESS", "AGE"),
    RebalancePlan: ("NAME", "TABLE", "NUMBER", "STATE", "MOVES", "PROGRESS", "AGE"),
}
_USUAL: Final = ("AsExpected", "Approved")


def kind_of(text: str) -> type[Resource]:
    """Return the kind of a plural, singular or short name."""
    kind = _NAMES.get(text.lower())
    if kind is None:
        raise InvalidInputError(
            f"kind: got {text!r}; allowed: storeclusters, tables, partitionassignments, rebalanceplans (or plans)"
        )
    return kind


def split_name(text: str, *, default: str = "table") -> tuple[type[Resource], str]:
    """Split `table/orders` into kind and name; `orders` alone has the default kind."""
    kind, slash, name = text.rpartition("/")
    if not name:
        raise InvalidInputError(f"name: got {text!r}; allowed: a name, such as {default}/orders")
    return kind_of(kind if slash else default), name


def display_name(kind: type[Resource], name: str) -> str:
    """Return the name of a resource in kubectl's form: `table.evenkeel.dev/orders`."""
    return f"{kind.__name__.lower()}.evenkeel.dev/{name}"


def listing(
    kind: type[Resource], resources: Sequence[Resource], *, one: bool = False, program: str = "evenkeel"
) -> Listing:
    """Return resources as a listing; with `one`, also the problems of the resource."""
    documents = [resource.document() for resource in resources]
    rows = [(found.metadata.name, *_cells(found), _age(found.metadata.creation_timestamp)) for found in resources]
    notes = [note for found in resources for note in notes_of(found, program)] if one else []
    return Listing(_HEADS[kind], rows, documents[0] if one and documents else documents, notes)


def conditions_of(resource: Resource) -> Conditions:
    """Return the conditions of a resource."""
    return resource.status.conditions if resource.status is not None else ()


def notes_of(resource: Resource, program: str = "evenkeel") -> Iterator[str]:
    """Yield a line for each problem of a resource."""
    if resource.metadata.deletion_timestamp:
        yield "being deleted"
    for entry in conditions_of(resource):
        if entry.type not in DERIVED_CONDITIONS and entry.reason not in _USUAL and entry.message:
            yield f"{entry.type} is {entry.status}, {entry.reason}: {_first_line(resource, entry.message, program)}"


def _first_line(resource: Resource, message: str, program: str) -> str:
    """Return the first line of a message; a traceback that follows is left to `-o json`."""
    first, more, _ = message.partition("\n")
    where = f"{type(resource).__name__.lower()}/{resource.metadata.name}"
    return f"{first.removesuffix(':')} in `{program} get {where} -o json`" if more else first


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
            plan = status or RebalancePlanStatus()
            progress = f"{plan.progress.percentage}%" if plan.progress is not None else "-"
            return (spec.table, spec.number or "-", plan.state or "-", plan.totals.moves, progress)


def _store_cluster(cluster: StoreCluster) -> Sequence[object]:
    status = cluster.status or StoreClusterStatus()
    stores = f"{status.ready_stores}/{cluster.spec.stores}"
    lost = ",".join(status.lost) or "-"
    return (_holds(status.conditions, "Ready"), stores, status.tables, status.replicas, status.version or "-", lost)


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
    return span(max(0.0, (datetime.now(UTC) - parse_timestamp(created)).total_seconds()))

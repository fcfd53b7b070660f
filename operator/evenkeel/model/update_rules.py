"""The changes that an existing resource allows.

The CEL rules of the CRDs refuse most forbidden changes in the API server. Local mode and the admission webhook use this
module, whose messages name both the old and the new value.
"""

from __future__ import annotations

from collections.abc import Iterator

from evenkeel.errors import InputProblem, InvalidInputError
from evenkeel.model.columns import Column
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.resource_base import MISSING, Path, Violation
from evenkeel.model.resource_loading import Resource
from evenkeel.model.storecluster import StoreCluster, StoreClusterSpec
from evenkeel.model.table import Table, TableSpec
from evenkeel.model.validation_errors import show, spell

__all__ = ["validate_table_update", "validate_update"]


def validate_update(old: Resource, new: Resource) -> None:
    """Raise InvalidInputError with every forbidden change from `old` to `new`."""
    _refuse(_violations(old, new), source=f"{new.kind} {new.key}")


def validate_table_update(old: TableSpec, new: TableSpec, *, source: str) -> None:
    """Raise InvalidInputError with every forbidden change of a Table's spec; `source` names the Table in messages."""
    _refuse(_table(old, new), source=source)


def _refuse(violations: Iterator[Violation], *, source: str) -> None:
    problems = [
        InputProblem(source, 0, spell(path), words if got is MISSING else f"got {show(got)}; allowed: {words}")
        for path, got, words in violations
    ]
    if problems:
        raise InvalidInputError(problems=problems)


def _violations(old: Resource, new: Resource) -> Iterator[Violation]:
    if (old.kind, old.key) != (new.kind, new.key):
        yield Violation(("metadata", "name"), f"{new.kind} {new.key}", f"{old.kind} {old.key}, the updated object")
    elif isinstance(old, Table) and isinstance(new, Table):
        yield from _table(old.spec, new.spec)
    elif isinstance(old, StoreCluster) and isinstance(new, StoreCluster):
        yield from _store_cluster(old, new)
    elif isinstance(old, PartitionAssignment) and isinstance(new, PartitionAssignment):
        yield from _fixed(("spec", "table"), old.spec.table, new.spec.table)
        yield from _fixed(("spec", "from"), old.spec.from_, new.spec.from_)
    elif isinstance(old, RebalancePlan) and isinstance(new, RebalancePlan):
        yield from _plan(old, new)


def _fixed(path: Path, old: object, new: object) -> Iterator[Violation]:
    if old != new:
        yield Violation(path, new, f"{show(old)}, because it cannot change after creation")


def _table(old: TableSpec, new: TableSpec) -> Iterator[Violation]:
    yield from _fixed(("spec", "storeCluster"), old.store_cluster, new.store_cluster)
    yield from _fixed(("spec", "partitions"), old.partitions, new.partitions)
    before, after = old.table_schema, new.table_schema
    yield from _fixed(("spec", "schema", "primaryKey"), before.primary_key, after.primary_key)
    yield from _fixed(("spec", "schema", "partitionBy"), before.partition_key, after.partition_key)
    yield from _columns(before.columns, after.columns)


def _columns(old: tuple[Column, ...], new: tuple[Column, ...]) -> Iterator[Violation]:
    path = ("spec", "schema", "columns")
    for i, column in enumerate(old):
        if i >= len(new) or new[i].name != column.name:
            words = f"column {column.name} must stay at position {i}: columns can only be added at the end"
            yield Violation((*path, i), MISSING, words)
            return
        for field in ("type", "nullable", "default"):
            yield from _fixed((*path, i, field), getattr(column, field), getattr(new[i], field))
    for i, column in enumerate(new[len(old) :], start=len(old)):
        if not column.nullable and column.default is None:
            words = f"column {column.name} needs a default or `nullable: true`: existing rows have no value for it"
            yield Violation((*path, i), MISSING, words)


def _store_cluster(old: StoreCluster, new: StoreCluster) -> Iterator[Violation]:
    before, after = old.spec.storage, new.spec.storage
    if after.size.value < before.size.value:
        yield Violation(
            ("spec", "storage", "size"), after.size, f"{before.size} or more, because volumes cannot shrink"
        )
    yield from _fixed(("spec", "storage", "className"), before.class_name, after.class_name)
    yield from _metastore(old.spec, new.spec)


def _metastore(old: StoreClusterSpec, new: StoreClusterSpec) -> Iterator[Violation]:
    before, after = (None if spec.metastore is None else spec.metastore.endpoints for spec in (old, new))
    adopts = new.adopt_metastore is not None and new.adopt_metastore != old.adopt_metastore
    if before == after or (before is not None and after is not None and adopts):
        return
    path = ("spec", "metastore", "endpoints")
    if before is None or after is None:
        yield from _fixed(path, before, after)
    else:
        words = f"{show(before)}, unless `adoptMetastore` is changed to the etcd cluster at the new endpoints"
        yield Violation(path, after, words)


def _plan(old: RebalancePlan, new: RebalancePlan) -> Iterator[Violation]:
    yield from _fixed(("spec", "table"), old.spec.table, new.spec.table)
    yield from _fixed(("spec", "number"), old.spec.number, new.spec.number)
    yield from _fixed(("spec", "dryRun"), old.spec.dry_run, new.spec.dry_run)
    if old.spec.what_if != new.spec.what_if:
        yield Violation(("spec", "whatIf"), MISSING, "whatIf cannot change after creation; create another dry run")
    approved = old.spec.approved_hash
    if approved is not None and new.spec.approved_hash != approved:
        words = f"{show(approved)}, because an approval cannot be changed or revoked"
        yield Violation(("spec", "approvedHash"), new.spec.approved_hash, words)

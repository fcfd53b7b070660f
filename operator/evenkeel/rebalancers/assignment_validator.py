"""Check an assignment before it is stored, no matter what computed it.

A wrong assignment is worse than none: an empty row deletes a partition, and a duplicate store silently loses a replica.
So the validator repairs nothing. The first violation is an error that names partition and store, and the last valid
assignment stays in force.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evenkeel.errors import RebalancerError
from evenkeel.model.views import NO_STORE, Assignment, StoresView, StoreView, TableView
from evenkeel.planner.placement_rules import cap, exclusion

__all__ = ["validate"]

_NAMED = 5


def validate(table: TableView, stores: StoresView, assignment: Assignment, *, keeps: Assignment | None = None) -> None:
    """Raise RebalancerError unless `assignment` is valid for `table` on `stores`.

    `keeps` is the previous assignment in modes in which users choose stores: a store that may not receive replicas
    (lost, draining ...) may then keep those it has.
    """
    _check_shape(table, assignment)
    _check_rows(table, assignment)
    _check_stores(table, stores, assignment, keeps)
    _check_caps(table, stores, assignment)


def _check_shape(table: TableView, assignment: Assignment) -> None:
    rows = assignment.rows
    if rows.ndim != 2:
        raise RebalancerError(f"the rows have {rows.ndim} dimensions; allowed: 2 dimensions, one row per partition")
    if assignment.partitions != table.partitions:
        raise RebalancerError(
            f"table {table.name} has {table.partitions} partitions, but the assignment has {assignment.partitions} rows"
        )
    if assignment.voters != table.consensus_size:
        raise RebalancerError(
            f"the assignment has {assignment.voters} voters per partition; allowed: {table.consensus_size}, the"
            f" consensusSize of table {table.name}"
        )
    if len(set(assignment.stores)) != len(assignment.stores):
        raise RebalancerError("the assignment's list of stores names a store twice")


def _check_rows(table: TableView, assignment: Assignment) -> None:
    rows = assignment.rows
    _refuse((rows < NO_STORE) | (rows >= len(assignment.stores)), "points at a store outside the assignment's list")
    present = rows != NO_STORE
    _refuse(present[:, 1:] & ~present[:, :-1], "has a gap before its last store")
    counts = present.sum(axis=1)
    _refuse((counts == 0)[:, None], "has no stores")
    wrong = np.flatnonzero(counts != table.replicas)
    if wrong.size:
        raise RebalancerError(
            f"{_partitions(wrong)} has {counts[wrong[0]]} stores; allowed: {table.replicas}, the replicas of table"
            f" {table.name}"
        )
    ordered = np.sort(rows, axis=1)
    _refuse((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_STORE), "names a store twice")


def _refuse(broken: NDArray[np.bool_], what: str) -> None:
    partitions = np.flatnonzero(broken.any(axis=1))
    if partitions.size:
        raise RebalancerError(f"{_partitions(partitions)} {what}")


def _partitions(found: NDArray[np.intp]) -> str:
    named = ", ".join(str(partition) for partition in found[:_NAMED])
    rest = f" and {found.size - _NAMED} more" if found.size > _NAMED else ""
    return f"partition {named}{rest}"


def _check_stores(table: TableView, stores: StoresView, assignment: Assignment, keeps: Assignment | None) -> None:
    known = {store.name: store for store in stores.stores}
    used = np.unique(assignment.rows)
    for i in used[used != NO_STORE]:
        name = assignment.stores[i]
        reason = _excluded(known[name], table) if name in known else None
        if name in known and reason is None:
            continue
        partitions = np.flatnonzero((assignment.rows == i).any(axis=1))
        if reason is None:
            raise RebalancerError(f"{_partitions(partitions)} names store {name}, which does not exist")
        _check_kept(partitions, name, reason, keeps)


def _excluded(store: StoreView, table: TableView) -> str | None:
    # _check_caps checks caps.
    return None if cap(store, table) == 0 and store.usable else exclusion(store, table)


def _check_kept(partitions: NDArray[np.intp], name: str, reason: str, keeps: Assignment | None) -> None:
    if keeps is None:
        raise RebalancerError(f"{_partitions(partitions)} goes to store {name}, which {reason}")
    new = np.array(
        [p for p in partitions if p >= keeps.partitions or name not in keeps.stores_of(int(p))], dtype=np.intp
    )
    if new.size:
        raise RebalancerError(
            f"{_partitions(new)} goes to store {name}, which {reason}; such a store may only keep what it has"
        )


def _check_caps(table: TableView, stores: StoresView, assignment: Assignment) -> None:
    rows = assignment.rows
    held = np.bincount(rows[rows != NO_STORE], minlength=len(assignment.stores))
    number = {name: int(held[i]) for i, name in enumerate(assignment.stores)}
    for store in stores.stores:
        limit = cap(store, table)
        if limit is not None and number.get(store.name, 0) > limit:
            raise RebalancerError(
                f"store {store.name} would hold {number[store.name]} replicas of table {table.name}, but has room for"
                f" {limit} (its capacity less what other tables use, and maxPerStore)"
            )

"""`pinned`: what is placed stays; only replicas that cannot stay, or are too few, find another store.

A store that joins gets nothing until something is lost, drained or added. What is left of a partition keeps its
order, so that a learner which already has the data moves up to voter and the new replica starts as a learner where
there are any. A hole is filled by the store that has fewest replicas for its weight, in the zone that has fewest of
the partition. The first placement of a table is `balanced`'s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evenkeel.errors import PlanningError
from evenkeel.model.views import NO_STORE, Assignment, CurrentState, StoresView, TableView
from evenkeel.planner.balanced_plan import plan
from evenkeel.planner.placement_rules import Candidates, candidates
from evenkeel.rebalancers.rebalancer_api import RebalanceContext

__all__ = ["Pinned"]

Rows = NDArray[np.int32]


class Pinned:
    """Stateless: the previous assignment is its memory."""

    def init(self, context: RebalanceContext) -> None:
        """Nothing to prepare."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """The previous assignment with its holes filled."""
        eligible = candidates(table, stores)
        kept = _kept(table, previous, eligible)
        if (kept == NO_STORE).all():
            return plan(table, previous, stores, current)
        _fill(table, kept, eligible)
        return Assignment(eligible.names, eligible.index[kept], voters=table.consensus_size)


def _kept(table: TableView, previous: Assignment, eligible: Candidates) -> Rows:
    """The candidates' numbers that stay, in their order; holes at the end of each row."""
    numbers = eligible.numbers(previous.stores)[previous.rows]
    numbers = _without_excess(numbers, eligible)
    order = np.argsort(numbers == NO_STORE, axis=1, kind="stable")
    packed = np.take_along_axis(numbers, order, axis=1)[:, : table.replicas]
    out = np.full((table.partitions, table.replicas), NO_STORE, dtype=np.int32)
    out[: packed.shape[0], : packed.shape[1]] = packed
    return out


def _without_excess(numbers: Rows, eligible: Candidates) -> Rows:
    """Where a cap was lowered, the store keeps its lowest partitions."""
    numbers = numbers.copy()
    held = np.bincount(numbers[numbers != NO_STORE], minlength=len(eligible.index))
    for store in np.flatnonzero(held > eligible.room):
        rows, columns = np.nonzero(numbers == store)
        excess = slice(int(eligible.room[store]), None)
        numbers[rows[excess], columns[excess]] = NO_STORE
    return numbers


def _fill(table: TableView, kept: Rows, eligible: Candidates) -> None:
    held = np.bincount(kept[kept != NO_STORE], minlength=len(eligible.index))
    weight = eligible.weight.astype(np.float64)
    for partition, column in np.argwhere(kept == NO_STORE):
        row = kept[partition, :column]
        free = held < eligible.room
        free[row] = False
        if not free.any():
            raise PlanningError(
                f"table {table.name}: pinned finds no store with room for partition {partition};"
                " raise capacity or maxPerStore, add a store, or use the class balanced, which moves others away"
            )
        in_zone = np.bincount(eligible.zone[row], minlength=int(eligible.zone.max()) + 1)[eligible.zone]
        options = np.flatnonzero(free & (in_zone == in_zone[free].min()))
        best = options[np.argmin((held[options] + 1) / weight[options])]
        kept[partition, column] = best
        held[best] += 1

"""The bundled rebalancers `balanced`, `mod` and `pinned`; `rendezvous` has its own module.

`balanced` is the default. It optimises zones, then even shares, then the number of moves; see `evenkeel.planner`.

`mod` is the example of a user-defined rebalancer of Apache Helix. It numbers the usable stores 0 to n-1 in name order
and assigns partition i to the stores i, i+1, ... i+replicas-1 modulo n. It ignores zones and the previous assignment,
and moves most partitions whenever n changes. Use it for partitions that cost nothing to move, such as locks.

`pinned` keeps replicas in place. It only replaces those that cannot stay and adds those that are missing, so a new
store gets nothing until a replica is lost, drained or added. The remaining replicas of a partition keep their order:
a learner that already has the data becomes a voter, and the new replica starts as a learner if the table has any. A
new replica goes to the zone with the fewest replicas of the partition, and there to the store with the fewest replicas
for its weight. The first placement of a table is that of `balanced`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evenkeel.errors import PlanningError
from evenkeel.model.views import NO_STORE, Assignment, CurrentState, StoresView, TableView
from evenkeel.planner.balanced_plan import plan
from evenkeel.planner.placement_rules import Candidates, candidates
from evenkeel.rebalancers.rebalancer_api import RebalanceContext

__all__ = ["Balanced", "Mod", "Pinned"]

Rows = NDArray[np.int32]


class Balanced:
    """The planner as a rebalancer."""

    def init(self, context: RebalanceContext) -> None:
        """Do nothing."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Return the planner's assignment."""
        return plan(table, previous, stores, current)


class Mod:
    """Assigns partitions to stores by their number."""

    def init(self, context: RebalanceContext) -> None:
        """Do nothing."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Assign partition i to the stores i, i+1, ... modulo their number."""
        eligible = candidates(table, stores)
        steps = np.arange(table.partitions)[:, None] + np.arange(table.replicas)
        rows = eligible.index[steps % len(eligible.index)]
        return Assignment(eligible.names, rows, voters=table.consensus_size)


class Pinned:
    """Keeps the previous assignment and fills its holes."""

    def init(self, context: RebalanceContext) -> None:
        """Do nothing."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Return the previous assignment with its holes filled."""
        eligible = candidates(table, stores)
        kept = _kept(table, previous, eligible)
        if (kept == NO_STORE).all():
            return plan(table, previous, stores, current)
        _fill(table, kept, eligible)
        return Assignment(eligible.names, eligible.index[kept], voters=table.consensus_size)


def _kept(table: TableView, previous: Assignment, eligible: Candidates) -> Rows:
    """Return the numbers of the candidates that stay, in their order, with the holes at the end of each row."""
    numbers = eligible.numbers(previous.stores)[previous.rows]
    numbers = _without_excess(numbers, eligible)
    order = np.argsort(numbers == NO_STORE, axis=1, kind="stable")
    packed = np.take_along_axis(numbers, order, axis=1)[:, : table.replicas]
    out = np.full((table.partitions, table.replicas), NO_STORE, dtype=np.int32)
    out[: packed.shape[0], : packed.shape[1]] = packed
    return out


def _without_excess(numbers: Rows, eligible: Candidates) -> Rows:
    """Drop replicas above a store's cap; the store keeps its lowest partitions."""
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
                " raise capacity or maxPerStore, add a store, or use the class balanced, which can move other replicas"
            )
        in_zone = np.bincount(eligible.zone[row], minlength=int(eligible.zone.max()) + 1)[eligible.zone]
        options = np.flatnonzero(free & (in_zone == in_zone[free].min()))
        best = options[np.argmin((held[options] + 1) / weight[options])]
        kept[partition, column] = best
        held[best] += 1

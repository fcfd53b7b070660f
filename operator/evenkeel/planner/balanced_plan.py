"""The default rebalancer. It optimises these levels in order, each exactly:

1. Hard rules: each partition is on `replicas` distinct usable stores, and no store is above its cap. Lost and draining
   stores, stores of weight 0 and stores outside the selector hold nothing. If that is impossible: `PlanningError`.
2. Zones: minimise the sum over partitions p and zones z of `k(p, z)**2`, where k is the number of replicas of p in z.
3. Balance: each store holds its share, rounded down or up; `fair_shares` defines a share.
4. Moves: minimise the number of (partition, store) pairs that are not in `previous`.

Then, for the placement chosen above:

5. Leaders: minimise the sum over stores of the squared distance between the number of partitions a store leads and its
   leader share, rounded down or up.
6. Roles: minimise the number of retained replicas that change between voter and learner.
7. Transfers: minimise the number of partitions whose leader changes. A partition's leader is the one in
   `current.leaders`, else the first store of the previous row.

Levels 5 to 7 take the placement as given: optimising both together is not a flow problem and has no exact solution in
reasonable time. With equal weights and n or n + 1 replicas per store, this costs nothing: giving each replica 1/r of
its partition's leadership is balanced to within one, and a fractional flow with integer bounds implies an integer one.
Ties between placements are broken so that leaders, voters and partitions with a change in progress stay in place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evenkeel.errors import PlanningError
from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.planner.fair_shares import Levels, Shares, fair_shares, proportional, zone_levels
from evenkeel.planner.placement import place
from evenkeel.planner.placement_problem import NONE, Counts, PlacementProblem, Rows, count
from evenkeel.planner.placement_rules import Candidates, candidates
from evenkeel.planner.preferred_leaders import Roles, arrange
from evenkeel.planner.store_aims import near

__all__ = ["plan", "problem_of", "shares_of"]


def plan(table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
    """Return the optimal assignment, as the module's docstring defines it."""
    allowed = candidates(table, stores)
    _check_previous(table, previous)
    problem = problem_of(table, previous, allowed, current)
    rows = place(problem)
    roles = Roles(
        voters=table.consensus_size,
        previous=problem.previous,
        previous_voters=previous.voters,
        led=problem.led,
        zone=problem.zone,
        weight=allowed.weight,
    )
    ordered = arrange(rows, roles)
    return Assignment(allowed.names, allowed.index[ordered], voters=table.consensus_size)


def shares_of(table: TableView, allowed: Candidates) -> tuple[Levels, Shares]:
    """Divide the table's replicas over zones and stores."""
    zone_room = np.zeros(int(allowed.zone.max()) + 1, dtype=np.int64)
    np.add.at(zone_room, allowed.zone, allowed.room)
    levels = zone_levels(zone_room, partitions=table.partitions, replicas=table.replicas)
    shares = fair_shares(
        weight=allowed.weight,
        room=allowed.room,
        zone=allowed.zone,
        levels=levels,
        total=table.partitions * table.replicas,
    )
    return levels, shares


def _check_previous(table: TableView, previous: Assignment) -> None:
    if previous.partitions != table.partitions:
        raise PlanningError(
            f"table {table.name}: it has {table.partitions} partitions but its previous assignment has"
            f" {previous.partitions}; use an assignment of this table"
        )


def problem_of(table: TableView, previous: Assignment, allowed: Candidates, current: CurrentState) -> PlacementProblem:
    """Translate the planner's inputs to arrays."""
    levels, shares = shares_of(table, allowed)
    rows = _distinct(allowed.numbers(previous.stores)[previous.rows])
    led = _led(rows, allowed, current)
    return PlacementProblem(
        replicas=table.replicas,
        previous=rows,
        previous_voters=previous.voters,
        led=led,
        spare_leaders=_spare_leaders(led, allowed),
        moving=_moving(table, current),
        zone=allowed.zone,
        zone_lowest=levels.lowest,
        zone_highest=levels.highest,
        lowest=shares.lowest,
        highest=shares.highest,
        share=shares.exact,
    )


def _distinct(rows: Rows) -> Rows:
    """Remove duplicate stores from each row; a previous assignment may have some."""
    for i in range(rows.shape[1]):
        for j in range(i):
            rows[rows[:, i] == rows[:, j], i] = NONE
    return rows


def _led(rows: Rows, allowed: Candidates, current: CurrentState) -> NDArray[np.int32]:
    led = rows[:, 0].copy() if rows.shape[1] else np.full(len(rows), NONE, dtype=np.int32)
    # The current state may be read before the table, and have partitions that the table does not have.
    leaders = {p: store for p, store in current.leaders.items() if 0 <= p < len(rows)}
    led[list(leaders.keys())] = allowed.numbers(tuple(leaders.values()))[:-1]
    return led


def _spare_leaders(led: NDArray[np.int32], allowed: Candidates) -> Counts:
    everything = np.full(len(allowed.room), len(led), dtype=np.int64)
    shares = proportional(allowed.weight, everything, len(led))
    leading = count(led, len(allowed.room))
    return leading - near(leading, shares, group=np.zeros_like(allowed.zone), totals=everything[:1])


def _moving(table: TableView, current: CurrentState) -> NDArray[np.bool_]:
    moving = np.zeros(table.partitions, dtype=bool)
    moving[[p for p in current.moving if 0 <= p < table.partitions]] = True
    return moving

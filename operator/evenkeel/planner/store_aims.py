"""Round shares to whole numbers (aims), as close as possible to what each store already holds or leads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evenkeel.planner.fair_shares import Shares
from evenkeel.planner.placement_problem import Counts, PlacementProblem, positions

__all__ = ["near", "per_zone", "wanted"]


def wanted(problem: PlacementProblem, held: Counts) -> Counts:
    """Return each store's aim: close to what it holds, within its share and its zone's total."""
    totals = _zone_totals(problem, np.clip(held, problem.lowest, problem.highest))
    shares = Shares(problem.lowest, problem.highest, problem.share)
    return near(held, shares, group=problem.zone, totals=totals)


def near(held: Counts, shares: Shares, *, group: NDArray[np.int32], totals: Counts) -> Counts:
    """Round the shares so that each group adds up to its total, as close as possible to what is held."""
    aim = np.clip(held, shares.lowest, shares.highest)
    change = totals.copy()
    np.subtract.at(change, group, aim)
    remainder = shares.exact - shares.lowest
    up = _picked(group, aim < shares.highest, quota=np.maximum(change, 0), preference=-remainder)
    down = _picked(group, aim > shares.lowest, quota=np.maximum(-change, 0), preference=remainder)
    return aim + up - down


def per_zone(problem: PlacementProblem, values: Counts) -> Counts:
    """Sum per-store values over each zone."""
    totals = np.zeros(problem.zones, dtype=np.int64)
    np.add.at(totals, problem.zone, values)
    return totals


def _zone_totals(problem: PlacementProblem, aim: Counts) -> Counts:
    lowest = np.maximum(per_zone(problem, problem.lowest), problem.zone_lowest * problem.partitions)
    highest = np.minimum(per_zone(problem, problem.highest), problem.zone_highest * problem.partitions)
    totals = np.clip(per_zone(problem, aim), lowest, highest)
    missing = problem.partitions * problem.replicas - int(totals.sum())
    slack = highest - totals if missing > 0 else totals - lowest
    change = _spill(slack, abs(missing))
    return totals + change if missing > 0 else totals - change


def _spill(slack: Counts, amount: int) -> Counts:
    """Take `amount` from the slacks, largest first."""
    order = np.argsort(-slack, kind="stable")
    before = np.cumsum(slack[order]) - slack[order]
    taken = np.zeros_like(slack)
    taken[order] = np.clip(amount - before, 0, slack[order])
    return taken


def _picked(
    group: NDArray[np.int32], allowed: NDArray[np.bool_], *, quota: Counts, preference: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Pick `quota[g]` of the allowed stores of every group, smallest preference first, then by number."""
    stores = np.flatnonzero(allowed)
    stores = stores[np.lexsort((preference[stores], group[stores]))]
    groups = group[stores]
    picked = np.zeros(len(group), dtype=bool)
    picked[stores[positions(groups, len(quota)) < quota[groups]]] = True
    return picked

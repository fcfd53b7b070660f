"""Find a placement with the fewest moves: a fast heuristic, then exact search unless a bound proves it optimal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenkeel.planner.filled_replicas import fill
from evenkeel.planner.kept_replicas import cut_rows, cut_stores, ranks
from evenkeel.planner.placement_problem import NONE, Counts, PlacementProblem, Rows, count, zones_of
from evenkeel.planner.replica_exchange import Columns, Exchange, Reach, settle
from evenkeel.planner.store_aims import wanted

__all__ = ["fewest_moves", "improve", "newcomers", "place"]

_FAR = 2**60


def place(problem: PlacementProblem) -> Rows:
    """Return valid rows with each store at its share, rounded down or up, and the fewest moves."""
    kept = cut_rows(problem)
    aim = wanted(problem, count(kept, problem.stores))
    rows = fill(problem, cut_stores(problem, kept, aim), aim)
    return rows if _proven(problem, rows) else improve(problem, rows)


def _proven(problem: PlacementProblem, rows: Rows) -> bool:
    held = count(rows, problem.stores)
    if ((held < problem.lowest) | (held > problem.highest)).any():
        return False
    return int(newcomers(rows, problem.previous).sum()) == fewest_moves(problem)


def improve(problem: PlacementProblem, rows: Rows) -> Rows:
    """Exchange stores of valid rows until shares are met and no exchange saves a move."""
    graph = _Placement(problem, rows)
    # A walk visits each store once and an exchange costs at most one move, so with this unit shares outweigh moves.
    unit = problem.stores + 2
    settle(graph, Columns(count(rows, problem.stores), lowest=problem.lowest, highest=problem.highest, unit=unit))
    return graph.rows


def newcomers(rows: Rows, previous: Rows) -> NDArray[np.bool_]:
    """Mark the entries whose store did not hold the partition before: the moves."""
    new: NDArray[np.bool_] = rows != NONE
    for j in range(previous.shape[1]):
        new &= rows != previous[:, j : j + 1]
    return new


def fewest_moves(problem: PlacementProblem) -> int:
    """Return a lower bound of the moves: what rows must gain, or what stores must.

    Each zone with a fixed number of replicas per partition gives a bound; the elastic zones give one together. The
    bound is often reached, and then proves a plan optimal without a search.
    """
    zones = zones_of(problem.previous, problem.zone)
    rank = ranks(zones).rank
    held = count(problem.previous, problem.stores)
    bound = 0
    elastic = np.append(problem.elastic, False)
    for z in np.flatnonzero(~problem.elastic).tolist():
        kept = int(((zones == z) & (rank < problem.zone_highest[z])).sum())
        total = int(problem.zone_highest[z]) * problem.partitions
        bound += _gains(problem, held, problem.zone == z, total=total, kept=kept)
    if problem.elastic.any():
        inside = elastic[zones] & (zones != NONE)
        needed = inside & (rank < problem.zone_lowest[zones])
        extra = (inside & (rank == problem.zone_lowest[zones])).sum(axis=1)
        kept = int(needed.sum()) + int(np.minimum(extra, problem.extras).sum())
        rigid = int(problem.zone_lowest[~problem.elastic].sum())
        total = (problem.replicas - rigid) * problem.partitions
        bound += _gains(problem, held, problem.elastic[problem.zone], total=total, kept=kept)
    return bound


def _gains(problem: PlacementProblem, held: Counts, among: NDArray[np.bool_], *, total: int, kept: int) -> int:
    missing = int(np.maximum(problem.lowest - held, 0)[among].sum())
    useful = int(np.minimum(problem.highest, held)[among].sum())
    return max(missing, total - useful, total - kept)


class _Placement:
    """The exchange graph of a placement: an entry that was not in the previous row costs one move.

    A row can exchange stores within a zone. It can exchange between zones only if the zone that loses a replica is
    above its lowest number in the row, and the zone that gains one is below its highest.
    """

    def __init__(self, problem: PlacementProblem, rows: Rows) -> None:
        self.rows = rows.copy()
        self._problem = problem
        self._new = newcomers(rows, problem.previous)
        self._zones = zones_of(rows, problem.zone)
        self._members = [np.flatnonzero(problem.zone == z) for z in range(problem.zones)]

    def reach(self, label: Counts, changed: NDArray[np.bool_]) -> Reach:
        """Relax all exchanges: back to a store of the previous row, or to any other store of a zone."""
        at = np.flatnonzero(changed[self.rows].any(axis=1))
        view = _View.of(self._problem, self.rows[at], self._zones[at], label[self.rows[at]] - self._new[at])
        best = np.full(len(label), _FAR, dtype=np.int64)
        row = np.full(len(label), NONE, dtype=np.int64)
        if at.size:
            self._return(best, row, at, view)
            for z, members in enumerate(self._members):
                _arrive(best, row, members, view.rows, view.entering(np.arange(len(at)), z) + 1)
        reached = np.flatnonzero(row != NONE)
        source = np.full(len(label), NONE, dtype=np.int64)
        source[reached] = view.source(row[reached], self._problem.zone[reached])
        row[reached] = at[row[reached]]
        return Reach(best, row, source)

    def _return(self, best: Counts, row: NDArray[np.int64], at: NDArray[np.intp], view: _View) -> None:
        """Relax exchanges that take a store of the previous row back, at no cost."""
        previous = self._problem.previous[at]
        where, column = np.nonzero(newcomers(previous, view.rows))
        store = previous[where, column]
        value = view.entering(where, self._problem.zone[store])
        np.minimum.at(best, store, value)
        winners = np.flatnonzero((value == best[store]) & (value < _FAR))
        row[store[winners]] = where[winners]

    def cost(self, exchange: Exchange) -> int:
        """Return the number of moves that the exchange adds."""
        previous = self._problem.previous[exchange.row]
        return int(exchange.given in previous) - int(exchange.taken in previous)

    def apply(self, exchange: Exchange) -> None:
        """Replace the given store by the taken one."""
        p = exchange.row
        column = int(np.flatnonzero(self.rows[p] == exchange.given)[0])
        self.rows[p, column] = exchange.taken
        self._new[p, column] = exchange.taken not in self._problem.previous[p]
        self._zones[p, column] = self._problem.zone[exchange.taken]


@dataclass(frozen=True)
class _View:
    """Rows during a search, with the label at which each entry can be given up."""

    problem: PlacementProblem
    rows: Rows
    zones: Rows
    leaving: Counts
    spare: NDArray[np.bool_]
    across: Counts
    """Per row, the lowest label of an entry that its zone does not need."""

    @classmethod
    def of(cls, problem: PlacementProblem, rows: Rows, zones: Rows, leaving: Counts) -> _View:
        spare = ranks(zones).size > problem.zone_lowest[zones]
        across = np.where(spare, leaving, _FAR).min(axis=1)
        return cls(problem, rows, zones, leaving, spare, across)

    def entering(self, at: NDArray[np.intp], zone: int | NDArray[np.int32]) -> Counts:
        """Return the lowest label with which each row of `at` can take another store of the zone."""
        inside = self.zones[at] == np.reshape(zone, (-1, 1))
        within = np.where(inside, self.leaving[at], _FAR).min(axis=1)
        full = inside.sum(axis=1) >= self.problem.zone_highest[zone]
        entering: Counts = np.where(full, within, np.minimum(within, self.across[at]))
        return entering

    def source(self, at: NDArray[np.int64], zone: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the store that each row of `at` gives up for a store of the zone."""
        inside = self.zones[at] == zone[:, None]
        full = inside.sum(axis=1) >= self.problem.zone_highest[zone]
        allowed = inside | (self.spare[at] & ~full[:, None])
        column = np.where(allowed, self.leaving[at], _FAR).argmin(axis=1)
        given: NDArray[np.int32] = self.rows[at, column]
        return given


def _arrive(best: Counts, row: NDArray[np.int64], members: NDArray[np.intp], rows: Rows, value: Counts) -> None:
    """Assign to each member the cheapest row that does not contain it."""
    lowest = int(value.min())
    if lowest >= _FAR:
        return
    left = members[best[members] > lowest]
    for candidate in np.flatnonzero(value == lowest)[:8].tolist():
        present = np.isin(left, rows[candidate])
        best[left[~present]], row[left[~present]] = lowest, candidate
        left = left[present]
    for store in left.tolist():
        absent = np.where((rows == store).any(axis=1), _FAR, value)
        candidate = int(absent.argmin())
        if absent[candidate] < best[store]:
            best[store], row[store] = absent[candidate], candidate

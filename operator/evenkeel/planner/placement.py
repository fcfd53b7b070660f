"""Which stores hold which partition: a quick good answer first, the exact optimum where that is not yet proven."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evenkeel.planner.exchange import Columns, Exchange, Reach, settle
from evenkeel.planner.fill import fill
from evenkeel.planner.keep import cut_rows, cut_stores, ranks, wanted
from evenkeel.planner.problem import NONE, Counts, Problem, Rows, count, zones_of

__all__ = ["fewest_moves", "newcomers", "place"]

_FAR = 2**60


def place(problem: Problem) -> Rows:
    """Valid rows, every store at its share rounded down or up, with the fewest moves from the previous rows."""
    kept = cut_rows(problem)
    aim = wanted(problem, count(kept, problem.stores))
    rows = fill(problem, cut_stores(problem, kept, aim), aim)
    # One move costs 1 and a walk passes each store once, so a unit above that puts balance before moves.
    columns = Columns(
        count(rows, problem.stores), lowest=problem.lowest, highest=problem.highest, unit=problem.stores + 2
    )
    new = newcomers(rows, problem.previous)
    if columns.cost() == 0 and int(new.sum()) == fewest_moves(problem):
        return rows
    graph = _Placement(problem, rows, new)
    settle(graph, columns)
    return graph.rows


def newcomers(rows: Rows, previous: Rows) -> NDArray[np.bool_]:
    """Which entries name a store that did not hold the partition before: the moves."""
    new = rows != NONE
    for j in range(previous.shape[1]):
        new &= rows != previous[:, j : j + 1]
    return new


def fewest_moves(problem: Problem) -> int:
    """A number of moves that no plan can stay below: what rows must gain, or what stores must.

    Zones that each hold a fixed number of every partition's replicas bound the moves each on its own; the elastic
    ones do so together. The bound is often reached, and then proves a plan optimal without a search.
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


def _gains(problem: Problem, held: Counts, among: NDArray[np.bool_], *, total: int, kept: int) -> int:
    missing = int(np.maximum(problem.lowest - held, 0)[among].sum())
    useful = int(np.minimum(problem.highest, held)[among].sum())
    return max(missing, total - useful, total - kept)


class _Placement:
    """The exchange graph of a placement: an entry that was not in the previous row costs one move.

    A row can always exchange stores within a zone; between zones only if the giving zone has more than its lowest
    number in the row and the taking one less than its highest.
    """

    def __init__(self, problem: Problem, rows: Rows, new: NDArray[np.bool_]) -> None:
        self.rows = rows
        self._problem = problem
        self._new = new
        self._zones = zones_of(rows, problem.zone)
        self._size = ranks(self._zones).size
        self._members = [np.flatnonzero(problem.zone == z) for z in range(problem.zones)]
        self._dropped: tuple[NDArray[np.intp], NDArray[np.int32]] | None = None

    def reach(self, label: Counts) -> Reach:
        """Relax every exchange: back to a store of the previous row, or to any other store of a zone."""
        leaving = label[self.rows] - self._new
        spare = self._size > self._problem.zone_lowest[self._zones]
        across = np.where(spare, leaving, _FAR).min(axis=1)
        best = np.full(len(label), _FAR, dtype=np.int64)
        row = np.full(len(label), NONE, dtype=np.int64)
        self._return(best, row, leaving=leaving, across=across)
        for z, members in enumerate(self._members):
            self._arrive(best, row, members, self._entering(z, leaving=leaving, across=across) + 1)
        return Reach(best, row, self._sources(best, row, leaving=leaving, spare=spare))

    def _entering(self, z: int, *, leaving: Counts, across: Counts) -> Counts:
        """Per row, the lowest label with which it can take another store of zone z."""
        if self._problem.zones == 1:
            return leaving.min(axis=1)
        inside = self._zones == z
        within = np.where(inside, leaving, _FAR).min(axis=1)
        full = inside.sum(axis=1) >= self._problem.zone_highest[z]
        return np.where(full, within, np.minimum(within, across))

    def _return(self, best: Counts, row: NDArray[np.int64], *, leaving: Counts, across: Counts) -> None:
        if self._dropped is None:
            gone = newcomers(self._problem.previous, self.rows)
            at, column = np.nonzero(gone)
            self._dropped = at, self._problem.previous[at, column]
        at, store = self._dropped
        zone = self._problem.zone[store]
        inside = self._zones[at] == zone[:, None]
        within = np.where(inside, leaving[at], _FAR).min(axis=1)
        full = inside.sum(axis=1) >= self._problem.zone_highest[zone]
        value = np.where(full, within, np.minimum(within, across[at]))
        np.minimum.at(best, store, value)
        winners = np.flatnonzero(value == best[store])
        row[store[winners]] = at[winners]

    def _arrive(self, best: Counts, row: NDArray[np.int64], members: NDArray[np.intp], value: Counts) -> None:
        """Each member's cheapest row that does not have it already."""
        lowest = int(value.min())
        if lowest >= _FAR:
            return
        left = members[best[members] > lowest]
        for candidate in np.flatnonzero(value == lowest)[:8].tolist():
            present = np.isin(left, self.rows[candidate])
            best[left[~present]], row[left[~present]] = lowest, candidate
            left = left[present]
        for store in left.tolist():
            absent = np.where((self.rows == store).any(axis=1), _FAR, value)
            candidate = int(absent.argmin())
            if absent[candidate] < best[store]:
                best[store], row[store] = absent[candidate], candidate

    def _sources(
        self, best: Counts, row: NDArray[np.int64], *, leaving: Counts, spare: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """From which of its row's stores each label came."""
        reached = np.flatnonzero(best < _FAR // 2)
        rows = row[reached]
        zone = self._problem.zone[reached]
        inside = self._zones[rows] == zone[:, None]
        open_zone = inside.sum(axis=1) < self._problem.zone_highest[zone]
        allowed = inside | (spare[rows] & open_zone[:, None])
        column = np.where(allowed, leaving[rows], _FAR).argmin(axis=1)
        source = np.full(len(best), NONE, dtype=np.int64)
        source[reached] = self.rows[rows, column]
        return source

    def cost(self, exchange: Exchange) -> int:
        """The moves it adds."""
        previous = self._problem.previous[exchange.row]
        return int(exchange.given in previous) - int(exchange.taken in previous)

    def meet(self, one: Exchange, other: Exchange) -> bool:
        """Within a row two exchanges compete if they touch a common zone or both cross zones."""
        zone = self._problem.zone
        ends, others = {zone[one.given], zone[one.taken]}, {zone[other.given], zone[other.taken]}
        return bool(ends & others) or (len(ends) == 2 and len(others) == 2)

    def apply(self, exchange: Exchange) -> None:
        """Put the taken store where the given one was."""
        p = exchange.row
        column = int(np.flatnonzero(self.rows[p] == exchange.given)[0])
        self.rows[p, column] = exchange.taken
        self._new[p, column] = exchange.taken not in self._problem.previous[p]
        self._zones[p, column] = self._problem.zone[exchange.taken]
        self._size[p] = ranks(self._zones[p : p + 1]).size[0]
        self._dropped = None

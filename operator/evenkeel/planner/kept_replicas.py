"""Choose which replicas of the previous placement stay: first cut each row to a valid one, then each store to its aim.

Each cut keeps as much as possible and anticipates the other: rows drop replicas on the most overloaded stores, and
stores drop replicas in rows whose hole can be filled in a zone that grows. If the result is not optimal,
`replica_exchange` improves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenkeel.planner.placement_problem import (
    NONE,
    Counts,
    PlacementProblem,
    Rows,
    count,
    first_of_each,
    positions,
    zones_of,
)
from evenkeel.planner.store_aims import per_zone

__all__ = ["Ranks", "cut_rows", "cut_stores", "ranks"]

_CHUNKS = 512


@dataclass(frozen=True)
class Ranks:
    """Per entry of a row: its position among the row's entries of the same zone, and their number."""

    rank: NDArray[np.int8]
    size: NDArray[np.int8]


def ranks(zones: Rows) -> Ranks:
    """Rank and count entries of the same zone within each row; entries without a store have rank and size 0."""
    rank = np.zeros(zones.shape, dtype=np.int8)
    size = (zones != NONE).astype(np.int8)
    for i in range(zones.shape[1]):
        for j in range(i):
            same = (zones[:, i] == zones[:, j]) & (zones[:, i] != NONE)
            rank[:, i] += same
            size[:, i] += same
            size[:, j] += same
    return Ranks(rank, size)


def cut_rows(problem: PlacementProblem) -> Rows:
    """Drop the entries that make a row invalid, those of the most overloaded stores first."""
    kept = problem.previous.copy()
    rows = np.flatnonzero(_excess(problem, kept).any(axis=1))
    if not rows.size:
        return kept
    load = count(kept, problem.stores).astype(np.float64) - problem.share
    vote = _attachment(problem, kept[:, : problem.previous_voters])
    lead = _attachment(problem, problem.led)
    while rows.size:
        for chunk in _chunks(rows, problem.stores):
            _drop_heaviest(problem, kept, chunk, load=load, vote=vote, lead=lead)
        rows = rows[_excess(problem, kept[rows]).any(axis=1)]
    return kept


def _excess(problem: PlacementProblem, rows: Rows) -> NDArray[np.bool_]:
    """Mark entries of which at least one must be dropped: of zones above their bound, else of zones with an extra."""
    zones = zones_of(rows, problem.zone)
    in_zone = ranks(zones)
    present = zones != NONE
    over = present & (in_zone.size > problem.zone_highest[zones])
    lowest = problem.zone_lowest[zones]
    extras = (present & (in_zone.rank >= lowest)).sum(axis=1)
    surplus = present & (in_zone.size > lowest) & (extras > problem.extras)[:, None]
    excess: NDArray[np.bool_] = np.where(over.any(axis=1)[:, None], over, surplus)
    return excess


def _chunks(rows: NDArray[np.intp], stores: int) -> Iterator[NDArray[np.intp]]:
    # Loads are updated between chunks; in one chunk, every row would drop the same store.
    size = max(16, stores // 4, -(-len(rows) // _CHUNKS))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _attachment(problem: PlacementProblem, entries: Rows) -> NDArray[np.float64]:
    """Return by how much more than others a store must be overloaded to drop such an entry.

    A store that can keep all its entries of this kind never drops one; for others it is a quarter of the share.
    """
    keeps_all = count(entries, problem.stores) <= problem.highest
    return np.where(keeps_all, problem.partitions + 1.0, 1 + problem.share / 4)


def _drop_heaviest(
    problem: PlacementProblem,
    kept: Rows,
    chunk: NDArray[np.intp],
    *,
    load: NDArray[np.float64],
    vote: NDArray[np.float64],
    lead: NDArray[np.float64],
) -> None:
    rows = kept[chunk]
    votes = np.arange(rows.shape[1]) < problem.previous_voters
    leads = rows == problem.led[chunk][:, None]
    weight = load[rows] - votes * vote[rows] - leads * lead[rows]
    column = np.where(_excess(problem, rows), weight, -np.inf).argmax(axis=1)
    np.subtract.at(load, rows[np.arange(len(chunk)), column], 1.0)
    kept[chunk, column] = NONE


def cut_stores(problem: PlacementProblem, kept: Rows, aim: Counts) -> Rows:
    """Drop what each store holds beyond its aim, spread over as many rows as possible."""
    held = count(kept, problem.stores)
    surplus = np.maximum(held - aim, 0)
    if not surplus.any():
        return kept
    result = kept.copy()
    holes = problem.replicas - (kept != NONE).sum(axis=1)
    entries = _entries(problem, kept, surplus, per_zone(problem, aim) - per_zone(problem, held))
    for most in range(1, problem.replicas + 1):
        if not surplus.any():
            break
        left = _Entries.of(entries, kept)
        while (left := left.only(_droppable(left, result, surplus, holes < most))).row.size:
            chosen = left.choose(surplus, len(kept))
            result[left.row[chosen], left.column[chosen]] = NONE
            holes[left.row[chosen]] += 1
            np.subtract.at(surplus, left.store[chosen], 1)
    return result


def _entries(problem: PlacementProblem, kept: Rows, surplus: Counts, growth: Counts) -> NDArray[np.int64]:
    """Return the places in `kept` of overloaded stores' entries, by store and then by preference to drop them.

    Dropped last, in this order: entries whose hole would be in the wrong zone, of partitions in a change, and of
    leaders that can stay. Leaders that must leave their store anyway are dropped first, with the replica.
    """
    place = np.flatnonzero(np.append(surplus > 0, False)[kept])
    row, store = place // kept.shape[1], kept.ravel()[place]
    leads = store == problem.led[row]
    leaving = leads.copy()
    leaving[leads] = first_of_each(store[leads], problem.spare_leaders)
    reluctance = 4 * problem.moving[row] + 2 * (leads & ~leaving) + ~leads
    reluctance += 8 * _bound(problem, kept, row, problem.zone[store], growth)
    # One combined key (store, reluctance, place) sorts faster than several keys.
    keys: NDArray[np.int64] = (store.astype(np.int64) << 40) | (reluctance.astype(np.int64) << 36) | place
    keys.sort()
    return keys & (2**36 - 1)


@dataclass(frozen=True)
class _Entries:
    """Entries in order of preference within their store."""

    row: NDArray[np.int64]
    column: NDArray[np.int64]
    store: NDArray[np.int32]

    @classmethod
    def of(cls, places: NDArray[np.int64], kept: Rows) -> _Entries:
        return cls(places // kept.shape[1], places % kept.shape[1], kept.ravel()[places])

    def only(self, which: NDArray[np.bool_]) -> _Entries:
        return _Entries(self.row[which], self.column[which], self.store[which])

    def choose(self, surplus: Counts, rows: int) -> NDArray[np.intp]:
        """Return the next entries to drop, at most one per row and `surplus` per store."""
        chosen: NDArray[np.intp] = np.flatnonzero(positions(self.store, len(surplus)) < surplus[self.store])
        owner = np.empty(rows, dtype=np.intp)
        owner[self.row[chosen[::-1]]] = chosen[::-1]
        first_in_row: NDArray[np.intp] = chosen[owner[self.row[chosen]] == chosen]
        return first_in_row


def _droppable(entries: _Entries, kept: Rows, surplus: Counts, open_rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    present = kept[entries.row, entries.column] != NONE
    droppable: NDArray[np.bool_] = present & open_rows[entries.row] & (surplus[entries.store] > 0)
    return droppable


def _bound(
    problem: PlacementProblem, kept: Rows, row: NDArray[np.int64], own: NDArray[np.int32], growth: Counts
) -> NDArray[np.bool_]:
    """Mark entries of shrinking zones whose hole must be filled in the same zone: it needs it, or no other has room."""
    shrinking: NDArray[np.bool_] = (growth[own] < 0) & problem.elastic[own]
    if not shrinking.any():
        return shrinking
    zones = zones_of(kept[row], problem.zone)
    needed = (zones == own[:, None]).sum(axis=1) <= problem.zone_lowest[own]
    growing = np.append(problem.elastic & (growth > 0), False)
    topmost = (zones != NONE) & (ranks(zones).rank == problem.zone_highest[zones] - 1)
    taken = (growing[zones] & topmost).sum(axis=1) >= growing.sum()
    bound: NDArray[np.bool_] = shrinking & (needed | taken)
    return bound

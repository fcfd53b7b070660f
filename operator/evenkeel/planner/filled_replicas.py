"""Assign stores to a placement's missing replicas (holes), so that each store reaches its aim.

Stores take turns in a pseudo-random but fixed order, so that partitions that share one store do not also share a
second one. After the loss of a store, many stores then share the copying. If a turn gives a row a store that it already
has, or too many stores of one zone, two turns are swapped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenkeel.planner.placement_problem import NONE, Counts, PlacementProblem, Rows, count, zones_of

__all__ = ["fill", "scrambled_turns"]

_SWAPS = 200
_SEARCHED = 2_000_000
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class _Holes:
    """Entries to fill; `zone` is the zone that the row needs there, or NONE if any zone with room is valid."""

    row: NDArray[np.intp]
    column: NDArray[np.intp]
    zone: NDArray[np.int32]

    def only(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> _Holes:
        return _Holes(self.row[which], self.column[which], self.zone[which])


def fill(problem: PlacementProblem, kept: Rows, aim: Counts) -> Rows:
    """Complete `kept` to valid rows; stores reach their aim unless swapping turns does not find a way."""
    rows = _padded(problem, kept)
    gains = np.maximum(aim - count(rows, problem.stores), 0)
    holes = _find_holes(problem, rows)
    for z in np.unique(holes.zone[holes.zone != NONE]).tolist():
        members = np.flatnonzero(problem.zone == z).astype(np.int32)
        inside = holes.only(holes.zone == z)
        turns = _stretched(members[scrambled_turns(gains[members])], members, len(inside.row))
        np.subtract.at(gains, turns, 1)
        _TurnAssignment(problem, rows, inside, turns).settle()
    free = holes.only(holes.zone == NONE)
    turns = scrambled_turns(np.maximum(gains, 0)).astype(np.int32)
    turns = _stretched(turns, np.arange(problem.stores, dtype=np.int32), len(free.row))
    _TurnAssignment(problem, rows, free, turns).settle()
    return rows


def _padded(problem: PlacementProblem, kept: Rows) -> Rows:
    """Return as many columns as replicas; kept entries move left only if columns are removed."""
    width = kept.shape[1]
    if width > problem.replicas:
        order = np.argsort(kept == NONE, axis=1, kind="stable")[:, : problem.replicas]
        return np.take_along_axis(kept, order, axis=1)
    missing = np.full((len(kept), problem.replicas - width), NONE, dtype=np.int32)
    return np.hstack([kept, missing])


def _find_holes(problem: PlacementProblem, rows: Rows) -> _Holes:
    """Return all holes of `rows`, first those of rows without their leader."""
    row, column = np.nonzero(rows == NONE)
    holes = _Holes(row, column, np.full(len(row), NONE, dtype=np.int32))
    affected, first = np.unique(row, return_index=True)
    _label_needed(problem, holes, zones_of(rows[affected], problem.zone), first)
    # Turns are evenly distributed over stores, so rows that need a new leader are filled together, before the others.
    led = (rows[row] == problem.led[row][:, None]).any(axis=1) & (problem.led[row] != NONE)
    return holes.only(np.argsort(led, kind="stable"))


def _label_needed(problem: PlacementProblem, holes: _Holes, zones: Rows, first: NDArray[np.intp]) -> None:
    """Label the first holes of each row with the zones it must have."""
    following = first.copy()
    for z in np.flatnonzero(problem.zone_lowest > 0).tolist():
        lacking = int(problem.zone_lowest[z]) - (zones == z).sum(axis=1)
        for n in range(int(lacking.max(initial=0))):
            short = lacking > n
            holes.zone[following[short]] = z
            following[short] += 1


def scrambled_turns(gains: Counts) -> NDArray[np.int64]:
    """Return each store number `gains` times, evenly distributed, in a different order in each round.

    Turn k of g is at a pseudo-random position within the k-th of g equal intervals. All keys are integers (up to 2**24
    turns and stores) with the store in the lowest bits, so they are distinct and the order is the same on any machine.
    """
    store = np.repeat(np.arange(len(gains)), gains)
    turn = np.arange(len(store)) - np.repeat(np.cumsum(gains) - gains, gains)
    when = (((turn << 20) + _scramble(store, turn)) << 18) // np.maximum(gains, 1)[store]
    keys = (when << 24) | store
    keys.sort()
    return keys & (2**24 - 1)


def _scramble(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hash two integers to 20 bits."""
    mixed = a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + b.astype(np.uint64)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    return (mixed >> np.uint64(44)).astype(np.int64)


def _stretched(turns: NDArray[np.int32], members: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    """Return exactly `length` turns: truncated, or continued with the members in order."""
    missing = length - len(turns)
    return turns[:length] if missing <= 0 else np.append(turns, np.resize(members, missing))


class _TurnAssignment:
    """Assigns turn i to hole i, then swaps turns until each row is valid; as a last resort a store misses its share."""

    def __init__(self, problem: PlacementProblem, rows: Rows, holes: _Holes, turns: NDArray[np.int32]) -> None:
        self._problem = problem
        self._rows = rows
        self._holes = holes
        self._turns = turns
        self._write(np.arange(len(turns)))

    def _write(self, at: NDArray[np.intp]) -> None:
        self._rows[self._holes.row[at], self._holes.column[at]] = self._turns[at]

    def settle(self) -> None:
        """Swap turns at varying distances until each row is valid."""
        everyone = np.arange(len(self._turns))
        bad = everyone[~self._fits(everyone, self._turns)]
        for step in range(1, min(_SWAPS, len(everyone)) + 1):
            if not bad.size:
                return
            bad = self._swap(bad, 1 + int(step * _GOLDEN * len(self._turns)))
        load = count(self._rows, self._problem.stores) - self._problem.share
        for n, i in enumerate(bad.tolist()):
            if self._fits(np.array([i]), self._turns[i : i + 1])[0]:
                continue
            if n * len(self._turns) > _SEARCHED or not self._swap_anywhere(i):
                self._force(i, load)

    def _fits(self, at: NDArray[np.intp], stores: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each store is valid in its hole, given the row's other entries."""
        others = self._rows[self._holes.row[at]]
        others[np.arange(len(others)), self._holes.column[at]] = NONE
        free: NDArray[np.bool_] = ~(others == stores[:, None]).any(axis=1)
        if self._problem.zones > 1:
            zone = self._problem.zone[stores]
            taken = (zones_of(others, self._problem.zone) == zone[:, None]).sum(axis=1)
            free &= taken < self._problem.zone_highest[zone]
        return free

    def _swap(self, bad: NDArray[np.intp], distance: int) -> NDArray[np.intp]:
        """Swap each bad turn with the good turn at `distance` if both then fit; return the turns that are bad now."""
        turns, row = self._turns, self._holes.row
        partner = (bad + distance) % len(turns)
        marked = np.zeros(len(turns), dtype=bool)
        marked[bad] = True
        usable = ~marked[partner] & (row[bad] != row[partner])
        here, there = bad[usable], partner[usable]
        agreed = self._fits(here, turns[there]) & self._fits(there, turns[here])
        here, there = here[agreed], there[agreed]
        turns[here], turns[there] = turns[there], turns[here]
        self._write(here)
        self._write(there)
        # Two swaps can affect the same row, so swapped turns are checked again.
        marked[there] = True
        suspects = np.flatnonzero(marked)
        return suspects[~self._fits(suspects, turns[suspects])]

    def _swap_anywhere(self, i: int) -> bool:
        turns, row = self._turns, self._holes.row
        mine = self._fits(np.full(len(turns), i), turns)
        theirs = self._fits(np.arange(len(turns)), np.full(len(turns), turns[i]))
        partners = np.flatnonzero(mine & theirs & (row != row[i]))
        if not partners.size:
            return False
        pair = np.array([i, partners[0]])
        turns[pair] = turns[pair[::-1]]
        self._write(pair)
        return True

    def _force(self, i: int, load: NDArray[np.float64]) -> None:
        """Assign the least loaded store that makes the row valid."""
        everyone = np.arange(self._problem.stores, dtype=np.int32)
        allowed = self._fits(np.full(self._problem.stores, i), everyone)
        if self._holes.zone[i] != NONE:
            allowed &= self._problem.zone == self._holes.zone[i]
        store = int(np.where(allowed, load, np.inf).argmin())
        load[self._turns[i]] -= 1
        load[store] += 1
        self._turns[i] = store
        self._write(np.array([i]))

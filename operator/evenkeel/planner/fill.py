"""Fill the holes: every row gets its missing replicas, every store what its share lacks.

Stores take turns in a scrambled but fixed order, so that partitions sharing one store do not all share the next one
too: after a loss the work then falls on many stores. Where a turn gives a row a store it already has (or too many of
one zone) two turns are swapped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenkeel.planner.problem import NONE, Counts, Problem, Rows, count, zones_of

__all__ = ["fill", "scrambled_turns"]

_SWAPS = 24
_SEARCHED = 64
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class _Holes:
    """Entries to fill; `zone` is the zone that must have the replica, or NONE where any with room may."""

    row: NDArray[np.intp]
    column: NDArray[np.intp]
    zone: NDArray[np.int32]

    def only(self, which: NDArray[np.bool_]) -> _Holes:
        return _Holes(self.row[which], self.column[which], self.zone[which])


def fill(problem: Problem, kept: Rows, aim: Counts) -> Rows:
    """Complete `kept` to valid rows; stores meet their aim except where swapping turns found no way."""
    rows = _padded(problem, kept)
    holes = _holes(problem, rows)
    gains = np.maximum(aim - count(rows, problem.stores), 0)
    for z in np.flatnonzero(problem.zone_lowest > 0).tolist():
        members = np.flatnonzero(problem.zone == z).astype(np.int32)
        needed = holes.only(holes.zone == z)
        turns = _stretched(members[scrambled_turns(gains[members])], members, len(needed.row))
        np.subtract.at(gains, turns, 1)
        _place(problem, rows, needed, turns)
    free = holes.only(holes.zone == NONE)
    turns = scrambled_turns(np.maximum(gains, 0)).astype(np.int32)
    _place(problem, rows, free, _stretched(turns, np.arange(problem.stores, dtype=np.int32), len(free.row)))
    return rows


def _padded(problem: Problem, kept: Rows) -> Rows:
    """As many columns as replicas; what is kept moves left only where the width has to change."""
    width = kept.shape[1]
    if width > problem.replicas:
        order = np.argsort(kept == NONE, axis=1, kind="stable")[:, : problem.replicas]
        return np.take_along_axis(kept, order, axis=1)
    missing = np.full((len(kept), problem.replicas - width), NONE, dtype=np.int32)
    return np.hstack([kept, missing])


def _holes(problem: Problem, rows: Rows) -> _Holes:
    row, column = np.nonzero(rows == NONE)
    zone = np.full(len(row), NONE, dtype=np.int32)
    affected, first = np.unique(row, return_index=True)
    zones = zones_of(rows[affected], problem.zone)
    following = first.copy()
    for z in np.flatnonzero(problem.zone_lowest > 0).tolist():
        lacking = int(problem.zone_lowest[z]) - (zones == z).sum(axis=1)
        for n in range(int(lacking.max(initial=0))):
            short = lacking > n
            zone[following[short]] = z
            following[short] += 1
    return _Holes(row, column, zone)


def scrambled_turns(gains: Counts) -> NDArray[np.int64]:
    """Each number as often as it gains, evenly through the sequence, in another order every time round.

    Turn k of g falls somewhere within the k-th of g equal stretches. Integers throughout (up to 2**24 turns and
    stores), and sorted with the store in the lowest bits, so that no two keys are equal on any machine.
    """
    store = np.repeat(np.arange(len(gains)), gains)
    turn = np.arange(len(store)) - np.repeat(np.cumsum(gains) - gains, gains)
    when = (((turn << 20) + _scramble(store, turn)) << 18) // np.maximum(gains, 1)[store]
    keys = (when << 24) | store
    keys.sort()
    return keys & (2**24 - 1)


def _scramble(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Twenty bits that look unrelated for neighbouring inputs."""
    mixed = a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + b.astype(np.uint64)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    return (mixed >> np.uint64(44)).astype(np.int64)


def _stretched(turns: NDArray[np.int32], members: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    """Exactly `length` turns: cut, or continued round the members in order."""
    missing = length - len(turns)
    return turns[:length] if missing <= 0 else np.append(turns, np.resize(members, missing))


def _place(problem: Problem, rows: Rows, holes: _Holes, turns: NDArray[np.int32]) -> None:
    """Give hole i turn i, then swap turns until every row is valid, as a last resort at the cost of a share."""
    rows[holes.row, holes.column] = turns
    bad = np.flatnonzero(~_fits(problem, rows, holes, slice(None), turns))
    for step in range(1, _SWAPS + 1):
        if not bad.size:
            return
        bad = _swap(problem, rows, holes, turns, bad, 1 + int(step * _GOLDEN * len(turns)))
    for n, i in enumerate(bad.tolist()):
        at = np.array([i])
        if _fits(problem, rows, holes, at, turns[at])[0]:
            continue
        if n >= _SEARCHED or not _swap_anywhere(problem, rows, holes, turns, i):
            _force(problem, rows, holes, turns, i)


def _fits(
    problem: Problem, rows: Rows, holes: _Holes, at: slice | NDArray[np.intp], stores: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Whether each store could fill the hole beside it, given the row's other entries."""
    others = rows[holes.row[at]]
    others[np.arange(len(others)), holes.column[at]] = NONE
    free = ~(others == stores[:, None]).any(axis=1)
    if problem.zones > 1:
        zone = problem.zone[stores]
        taken = (zones_of(others, problem.zone) == zone[:, None]).sum(axis=1)
        free &= taken < problem.zone_highest[zone]
    return free


def _swap(
    problem: Problem,
    rows: Rows,
    holes: _Holes,
    turns: NDArray[np.int32],
    bad: NDArray[np.intp],
    distance: int,
) -> NDArray[np.intp]:
    """Swap each bad turn with the good one `distance` further if both then fit; return what is bad now."""
    partner = (bad + distance) % len(turns)
    usable = ~np.isin(partner, bad) & (holes.row[bad] != holes.row[partner])
    here, there = bad[usable], partner[usable]
    agreed = _fits(problem, rows, holes, here, turns[there]) & _fits(problem, rows, holes, there, turns[here])
    here, there = here[agreed], there[agreed]
    turns[here], turns[there] = turns[there], turns[here]
    rows[holes.row[here], holes.column[here]] = turns[here]
    rows[holes.row[there], holes.column[there]] = turns[there]
    # Two swaps can meet in one row, so what was just swapped is looked at again.
    suspects = np.union1d(bad, there)
    return suspects[~_fits(problem, rows, holes, suspects, turns[suspects])]


def _swap_anywhere(problem: Problem, rows: Rows, holes: _Holes, turns: NDArray[np.int32], i: int) -> bool:
    everyone = np.arange(len(turns))
    mine = _fits(problem, rows, holes, np.full(len(turns), i), turns)
    theirs = _fits(problem, rows, holes, everyone, np.full(len(turns), turns[i]))
    partners = np.flatnonzero(mine & theirs & (holes.row != holes.row[i]))
    if not partners.size:
        return False
    j = partners[0]
    turns[i], turns[j] = turns[j], turns[i]
    rows[holes.row[i], holes.column[i]] = turns[i]
    rows[holes.row[j], holes.column[j]] = turns[j]
    return True


def _force(problem: Problem, rows: Rows, holes: _Holes, turns: NDArray[np.int32], i: int) -> None:
    """Take the least loaded store that makes the row valid."""
    everyone = np.arange(problem.stores, dtype=np.int32)
    allowed = _fits(problem, rows, holes, np.full(problem.stores, i), everyone)
    if holes.zone[i] != NONE:
        allowed &= problem.zone == holes.zone[i]
    load = np.where(allowed, count(rows, problem.stores) - problem.share, np.inf)
    turns[i] = load.argmin()
    rows[holes.row[i], holes.column[i]] = turns[i]

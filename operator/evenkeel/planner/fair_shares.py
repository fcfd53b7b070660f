"""Each store's and zone's share of a table's replicas.

Zones come first. Let `k(p, z)` be the number of replicas of partition p in zone z. The sum of all `k(p, z)**2` is
minimal exactly if each zone spreads its replicas evenly over the partitions, and the zones' totals are water-filled:
zones too small (or capped too low) for the common level are full, the others are at level j or j + 1. `zone_levels`
returns this as bounds on each `k(p, z)`.

A store's share is its part in a proportional division of fractional replicas: the numbers `x(s)` that minimise the sum
of `x(s)**2 / weight(s)` within the stores' room and the zones' levels. This is water-filling again, with the weight as
a store's width. All stores can be rounded to a neighbouring integer at the same time, because the constraints are
nested intervals with integer bounds. So "balanced" means that each store holds its share rounded down or up. All
arithmetic is in integers: rounding errors must not move a whole share up or down by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Levels", "Shares", "fair_shares", "proportional", "zone_levels"]

# 64-bit integers if every product fits, else Python integers.
Exact = NDArray[Any]

_SAFE = 2**62


@dataclass(frozen=True)
class Levels:
    """Per zone: bounds on one partition's replicas in it, and on the zone's total over all partitions."""

    lowest: NDArray[np.int64]
    highest: NDArray[np.int64]
    total_lowest: NDArray[np.int64]
    total_highest: NDArray[np.int64]


@dataclass(frozen=True)
class Shares:
    """Per store: its share rounded down, rounded up, and as a float (for ordering and display)."""

    lowest: NDArray[np.int64]
    highest: NDArray[np.int64]
    exact: NDArray[np.float64]


def zone_levels(zone_room: NDArray[np.int64], *, partitions: int, replicas: int) -> Levels:
    """Spread each partition over the zones as evenly as their room allows."""
    needed = partitions * replicas
    level = 0
    while int(np.minimum(zone_room, (level + 1) * partitions).sum()) < needed:
        level += 1
    below, above = level * partitions, (level + 1) * partitions
    total_highest = np.minimum(zone_room, above)
    full = zone_room <= below
    lowest = np.where(full, zone_room // partitions, level)
    highest = np.where(full, -(-zone_room // partitions), level + 1)
    total_lowest = np.where(full, zone_room, below)
    if int(total_highest.sum()) == needed:
        lowest = np.where(zone_room >= above, highest, lowest)
        total_lowest = total_highest
    return Levels(lowest, highest, total_lowest, total_highest)


def fair_shares(
    *, weight: NDArray[np.object_], room: NDArray[np.int64], zone: NDArray[np.int32], levels: Levels, total: int
) -> Shares:
    """Divide `total` over the stores in proportion to weight, within their room and their zones' totals.

    Zones whose part would be outside their bounds are fixed at the bound, on the side with the larger total violation.
    The level for the other zones then moves towards that side, so no zone is fixed wrongly.
    """
    shares = Shares(room.copy(), room.copy(), room.astype(np.float64))
    open_zones = np.ones(len(levels.lowest), dtype=bool)
    while open_zones.any():
        inside = np.flatnonzero(open_zones[zone])
        division = _divide(weight[inside], room[inside], total)
        numerator, denominator = division.zone_totals(zone[inside], len(open_zones))
        over = numerator - levels.total_highest.astype(numerator.dtype) * denominator
        under = levels.total_lowest.astype(numerator.dtype) * denominator - numerator
        over, under = np.where(open_zones, over, 0), np.where(open_zones, under, 0)
        excess, shortage = over[over > 0].sum(), under[under > 0].sum()
        if excess == 0 and shortage == 0:
            _write(shares, inside, division.shares())
            break
        settled = over > 0 if excess >= shortage else under > 0
        bounds = levels.total_highest if excess >= shortage else levels.total_lowest
        for z in np.flatnonzero(settled).tolist():
            members = np.flatnonzero(zone == z)
            _write(shares, members, proportional(weight[members], room[members], int(bounds[z])))
            total -= int(bounds[z])
        open_zones &= ~settled
    return shares


def proportional(weight: NDArray[np.object_], room: NDArray[np.int64], total: int) -> Shares:
    """Divide `total` in proportion to weight, no store above its room."""
    return _divide(weight, room, total).shares()


@dataclass(frozen=True)
class _Division:
    """A division of replicas: a store is full, or holds `rest * weight / width`."""

    weight: Exact
    room: Exact
    full: NDArray[np.bool_]
    rest: int
    width: int

    def zone_totals(self, zone: NDArray[np.int32], zones: int) -> tuple[Exact, int]:
        scaled = np.where(self.full, self.room * self.width, self.weight * self.rest)
        totals = np.zeros(zones, dtype=scaled.dtype)
        np.add.at(totals, zone, scaled)
        return totals, self.width

    def shares(self) -> Shares:
        scaled = self.weight * self.rest
        lowest = np.where(self.full, self.room, scaled // self.width).astype(np.int64)
        highest = np.where(self.full, self.room, -(-scaled // self.width)).astype(np.int64)
        exact = np.where(self.full, self.room, scaled / self.width).astype(np.float64)
        return Shares(lowest, highest, exact)


def _divide(weight: NDArray[np.object_], room: NDArray[np.int64], total: int) -> _Division:
    widths: Exact = weight
    rooms: Exact = room
    if (total + int(room.sum()) + 1) * int(weight.sum()) < _SAFE:
        widths = weight.astype(np.int64)
    else:
        rooms = room.astype(object)
    full = np.zeros(len(room), dtype=bool)
    rest = total
    while True:
        width = int(widths[~full].sum())
        filled = ~full & (rooms * width <= widths * rest)
        if not filled.any():
            return _Division(widths, rooms, full, rest, max(width, 1))
        rest -= int(rooms[filled].sum())
        full |= filled


def _write(shares: Shares, at: NDArray[np.intp], part: Shares) -> None:
    shares.lowest[at] = part.lowest
    shares.highest[at] = part.highest
    shares.exact[at] = part.exact

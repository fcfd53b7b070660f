"""The placement problem in numbers, and the few array operations on rows that every part of the planner shares.

A row is one partition's stores. With zones, the bounds on every `k(p, z)` (see `shares`) make a row valid when it has
`replicas` distinct stores and between `zone_lowest` and `zone_highest` of them in each zone; the two differ by at most
one. A row's replicas beyond its zones' lowest numbers are its extras, and every row has the same number of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["NONE", "Counts", "PlacementProblem", "Rows", "count", "first_of_each", "positions", "zones_of"]

NONE = -1

Rows = NDArray[np.int32]
Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PlacementProblem:
    """Everything a placement is judged by."""

    replicas: int
    previous: Rows
    """Partition x replica: the usable stores that hold it now, in the previous order; NONE elsewhere."""
    previous_voters: int
    """So many of the first columns vote."""
    led: NDArray[np.int32]
    """The store that leads each partition, or NONE."""
    spare_leaders: Counts
    """How many partitions each store leads beyond what it shall lead."""
    moving: NDArray[np.bool_]
    """Partitions under way; another change of them is taken only where it costs nothing extra."""
    zone: NDArray[np.int32]
    zone_lowest: Counts
    zone_highest: Counts
    lowest: Counts
    highest: Counts
    share: NDArray[np.float64]

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.previous)

    @property
    def stores(self) -> int:
        """Number of stores that may hold replicas."""
        return len(self.zone)

    @property
    def zones(self) -> int:
        """Number of zones."""
        return len(self.zone_lowest)

    @property
    def extras(self) -> int:
        """Replicas of each partition beyond what its zones must have."""
        return self.replicas - int(self.zone_lowest.sum())

    @property
    def elastic(self) -> NDArray[np.bool_]:
        """Zones that may hold one replica of a partition more or less."""
        return self.zone_lowest < self.zone_highest


def count(rows: NDArray[np.int32], stores: int) -> Counts:
    """How many replicas each store has in `rows`."""
    flat = rows.ravel()
    return np.bincount(flat[flat >= 0], minlength=stores).astype(np.int64)


def zones_of(rows: Rows, zone: NDArray[np.int32]) -> Rows:
    """The zone of every entry, NONE where there is none."""
    return np.append(zone, np.int32(NONE))[rows]


def first_of_each(stores: NDArray[np.int32], quota: Counts) -> NDArray[np.bool_]:
    """Mark the first `quota[s]` occurrences of every s."""
    order = np.argsort(stores, kind="stable")
    marked = np.zeros(len(stores), dtype=bool)
    marked[order] = positions(stores[order], len(quota)) < quota[stores[order]]
    return marked


def positions(ordered: NDArray[np.int32], stores: int) -> Counts:
    """The position of each entry among those of its store, given entries in order of stores."""
    sizes = np.bincount(ordered, minlength=stores)
    return np.arange(len(ordered)) - (np.cumsum(sizes) - sizes)[ordered]

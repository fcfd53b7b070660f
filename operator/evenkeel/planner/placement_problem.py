"""The placement problem as arrays, and array operations shared by the planner's modules.

A row is one partition's stores. A row is valid if it has `replicas` distinct stores, and between `zone_lowest` and
`zone_highest` of them in each zone (see `fair_shares`); the two bounds differ by at most one. A row's replicas beyond
its zones' lowest numbers are its extras; every row has the same number of extras.
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
    """The inputs and constraints of a placement."""

    replicas: int
    previous: Rows
    """Partition x replica: the usable stores that hold it now, in the previous order; NONE for others."""
    previous_voters: int
    """The number of leading columns that are voters."""
    led: NDArray[np.int32]
    """The store that leads each partition, or NONE."""
    spare_leaders: Counts
    """Per store, the partitions it leads beyond its aim."""
    moving: NDArray[np.bool_]
    """Partitions with a change in progress; they change again only if it costs nothing extra."""
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
        """Replicas of each partition beyond its zones' lowest numbers."""
        return self.replicas - int(self.zone_lowest.sum())

    @property
    def elastic(self) -> NDArray[np.bool_]:
        """Zones whose number of replicas per partition may differ by one."""
        return self.zone_lowest < self.zone_highest


def count(rows: NDArray[np.int32], stores: int) -> Counts:
    """Count each store's replicas in `rows`."""
    flat = rows.ravel()
    return np.bincount(flat[flat >= 0], minlength=stores).astype(np.int64)


def zones_of(rows: Rows, zone: NDArray[np.int32]) -> Rows:
    """Return the zone of each entry, NONE for entries without a store."""
    return np.append(zone, np.int32(NONE))[rows]


def first_of_each(stores: NDArray[np.int32], quota: Counts) -> NDArray[np.bool_]:
    """Mark the first `quota[s]` occurrences of every s."""
    order = np.argsort(stores, kind="stable")
    marked = np.zeros(len(stores), dtype=bool)
    marked[order] = positions(stores[order], len(quota)) < quota[stores[order]]
    return marked


def positions(ordered: NDArray[np.int32], stores: int) -> Counts:
    """Return each entry's position among the entries of its store; `ordered` is sorted by store."""
    sizes = np.bincount(ordered, minlength=stores)
    return np.arange(len(ordered)) - (np.cumsum(sizes) - sizes)[ordered]

"""Inputs of the planner's benchmark, and the rendezvous hashing it is compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evenkeel.model.views import Assignment, StoresView, StoreView, TableView


def table_view(partitions: int, replicas: int = 3) -> TableView:
    return TableView(name="bench", partitions=partitions, replicas=replicas, consensus_size=replicas)


def store_views(
    count: int, *, zones: int = 1, draining: Sequence[int] = (), lost_zone: int | None = None
) -> StoresView:
    return StoresView.of(
        *(
            StoreView(
                name=f"store-{i:05}", zone=f"zone-{i % zones}", draining=i in draining, live=i % zones != lost_zone
            )
            for i in range(count)
        )
    )


def spread(assignment: Assignment) -> int:
    """Return the difference between the most and the fewest replicas per store."""
    held = np.bincount(assignment.rows.ravel(), minlength=len(assignment.stores))
    return int(held.max() - held.min())


def rendezvous(table: TableView, stores: StoresView) -> Assignment:
    """Assign by highest random weight, as Ignite does: every partition takes the stores with the best scores.

    A score is a 64-bit mix of partition and store name.
    """
    names = [store.name for store in stores.stores]
    seeds = np.array([int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) for name in names])
    rows = np.empty((table.partitions, table.replicas), dtype=np.int32)
    for first in range(0, table.partitions, 1024):
        scores = _scores(np.arange(first, min(first + 1024, table.partitions)), seeds.astype(np.uint64))
        best = np.argpartition(scores, table.replicas, axis=1)[:, : table.replicas]
        order = np.take_along_axis(scores, best, axis=1).argsort(axis=1)
        rows[first : first + 1024] = np.take_along_axis(best, order, axis=1)
    return Assignment(names, rows, voters=table.consensus_size)


def _scores(partitions: NDArray[np.int64], seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (partitions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))[:, None] ^ seeds
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed

"""`rendezvous`: highest random weight hashing, as in Apache Ignite.

Each (partition, store) pair has a score that depends on nothing else. A partition goes to the stores with the highest
scores. So without any state, a store that joins only gains replicas, and a store that leaves only loses replicas. The
cost is that the distribution is even only on average. A store's weight scales its probability. With zones, each next
replica goes to the best store of the zones that have the fewest replicas of the partition.

Scores are the same on every machine and in every run: names are hashed with BLAKE2 and mixed with the partition number
by the finalizer of SplitMix64. Tables with the same `config.group` and number of partitions have the same scores, so
their partitions with the same number are placed together, for joins.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from evenkeel.errors import PlanningError
from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.planner.placement_rules import Candidates, candidates
from evenkeel.rebalancers.rebalancer_api import RebalanceContext

__all__ = ["Rendezvous", "scores"]

_CHUNK = 1 << 20
"""Number of scores in memory at a time."""

Scores = NDArray[np.float64]


class Rendezvous:
    """Assigns each partition to the stores with the highest scores."""

    def init(self, context: RebalanceContext) -> None:
        """Do nothing."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Assign each partition to its highest-scoring stores, as far as caps allow."""
        eligible = candidates(table, stores)
        group = str(table.config.get("group", table.name))
        picked = np.empty((table.partitions, table.replicas), dtype=np.int32)
        step = max(1, _CHUNK // len(eligible.index))
        for first in range(0, table.partitions, step):
            partitions = np.arange(first, min(first + step, table.partitions))
            score = scores(group, eligible, partitions)
            picked[partitions] = _pick(score, zone=eligible.zone, replicas=table.replicas)
        held = np.bincount(picked.ravel(), minlength=len(eligible.index))
        if (held > eligible.room).any():
            picked = _pick_within_room(table, eligible, group)
        return Assignment(eligible.names, eligible.index[picked], voters=table.consensus_size)


def scores(group: str, eligible: Candidates, partitions: NDArray[np.int64]) -> Scores:
    """Return the score of each (partition, store) pair."""
    names = [eligible.names[i] for i in eligible.index]
    seeds = np.array([_seed(f"{group}/{name}") for name in names], dtype=np.uint64)
    mixed = _mix(_mix(partitions.astype(np.uint64) + np.uint64(1))[:, None] ^ seeds)
    uniform = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    # -weight / ln(u) makes the probability of the highest score proportional to the weight.
    return -eligible.weight.astype(np.float64) / np.log(uniform)


def _seed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _pick(score: Scores, *, zone: NDArray[np.int32], replicas: int) -> NDArray[np.int32]:
    """Pick each row's best stores, zones with the fewest picks first; a score of -inf is never picked."""
    score = score.copy()
    rows = np.arange(len(score))
    in_zone = np.zeros((len(score), int(zone.max()) + 1), dtype=np.int32)
    picked = np.empty((len(score), replicas), dtype=np.int32)
    for i in range(replicas):
        crowding = np.where(np.isneginf(score), np.iinfo(np.int32).max, in_zone[:, zone])
        best = np.where(crowding == crowding.min(axis=1, keepdims=True), score, -np.inf).argmax(axis=1)
        picked[:, i] = best
        in_zone[rows, zone[best]] += 1
        score[rows, best] = -np.inf
    return picked


def _pick_within_room(table: TableView, eligible: Candidates, group: str) -> NDArray[np.int32]:
    """Pick partition by partition, skipping full stores."""
    room = eligible.room.copy()
    picked = np.empty((table.partitions, table.replicas), dtype=np.int32)
    for partition in range(table.partitions):
        score = scores(group, eligible, np.array([partition]))
        score[0, room == 0] = -np.inf
        if np.isfinite(score).sum() < table.replicas:
            raise PlanningError(
                f"table {table.name}: rendezvous finds no stores with room for partition {partition}: capped stores"
                " are full; raise capacity or maxPerStore, or use the class balanced, which plans around caps"
            )
        picked[partition] = _pick(score, zone=eligible.zone, replicas=table.replicas)[0]
        room[picked[partition]] -= 1
    return picked

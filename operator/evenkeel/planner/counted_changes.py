"""Count moves, role changes and transfers between two assignments: the summary of a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenkeel.errors import PlanningError
from evenkeel.model.views import Assignment, CurrentState
from evenkeel.planner.placement_problem import NONE, Rows

__all__ = ["Changes", "changed_partitions", "changes"]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Numbers of changes over all partitions."""

    partitions: int
    """Partitions with a changed store or role."""
    pairs: int
    """Additions and removals, where an addition and a removal of the same partition count as one."""
    moves: int
    """Replicas on stores that did not hold the partition before."""
    removals: int
    """Replicas that leave a store."""
    role_changes: int
    """Retained replicas that change between voter and learner."""
    transfers: int
    """Partitions whose leader changes."""


def changes(previous: Assignment, target: Assignment, current: CurrentState | None = None) -> Changes:
    """Count the changes from `previous` to `target`."""
    before, after = _aligned(previous, target)
    added, removed = _absent(after, before).sum(axis=1), _absent(before, after).sum(axis=1)
    return Changes(
        partitions=len(changed_partitions(previous, target)),
        pairs=int(np.maximum(added, removed).sum()),
        moves=int(added.sum()),
        removals=int(removed.sum()),
        role_changes=int(_role_changes(before, after, previous.voters, target.voters).sum()),
        transfers=_transfers(before, target, current or CurrentState()),
    )


def changed_partitions(previous: Assignment, target: Assignment) -> NDArray[np.intp]:
    """Return the partitions with a changed store or role."""
    before, after = _aligned(previous, target)
    moved = _absent(after, before).any(axis=1) | _absent(before, after).any(axis=1)
    return np.flatnonzero(moved | (_role_changes(before, after, previous.voters, target.voters) > 0))


def _role_changes(before: Rows, after: Rows, voters_before: int, voters_after: int) -> NDArray[np.int64]:
    """Count, per partition, the retained replicas that change between voter and learner."""
    changed = np.zeros(len(before), dtype=np.int64)
    for i in range(before.shape[1]):
        for j in range(after.shape[1]):
            if (i < voters_before) != (j < voters_after):
                changed += (before[:, i] == after[:, j]) & (after[:, j] != NONE)
    return changed


def _aligned(previous: Assignment, target: Assignment) -> tuple[Rows, Rows]:
    """Translate both matrices to the same store numbers: those of `target`, then stores only in `previous`."""
    if previous.partitions != target.partitions:
        raise PlanningError(
            f"assignments of {previous.partitions} and of {target.partitions} partitions cannot be compared;"
            " compare two assignments of the same table"
        )
    number = {name: i for i, name in enumerate(target.stores)}
    numbers = [number.setdefault(name, len(number)) for name in previous.stores]
    return np.array([*numbers, NONE], dtype=np.int32)[previous.rows], target.rows


def _absent(rows: Rows, elsewhere: Rows) -> NDArray[np.bool_]:
    absent: NDArray[np.bool_] = rows != NONE
    for j in range(elsewhere.shape[1]):
        absent &= rows != elsewhere[:, j : j + 1]
    return absent


def _transfers(before: Rows, target: Assignment, current: CurrentState) -> int:
    leaders = before[:, 0].copy() if before.shape[1] else np.full(len(before), NONE, dtype=np.int32)
    number = {name: i for i, name in enumerate(target.stores)}
    for partition, name in current.leaders.items():
        leaders[partition] = number.get(name, len(number))
    led = leaders != NONE
    return int((led & (leaders != target.rows[:, 0])).sum()) if target.rows.shape[1] else int(led.sum())

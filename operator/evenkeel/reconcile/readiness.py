"""Decides the condition Ready of every kind of resource.

    Table                 the spec is applied, and every partition can be read and written
    StoreCluster          the desired number of stores is registered, and the spec can be applied
    PartitionAssignment   the user's choices are accepted and in place, and every partition has a leader
    RebalancePlan         the plan is approved and carried out, or a newer plan has replaced it

A resource is not Ready if the metastore cannot be read; see the functions ending in `_unreadable`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from evenkeel.model.conditions import Condition, Progress, Reason

__all__ = [
    "Problem",
    "Verdict",
    "assignment_ready",
    "degraded",
    "ended_plan_ready",
    "is_complete",
    "plan_ready",
    "store_cluster_ready",
    "store_cluster_ready_unreadable",
    "table_ready",
    "table_ready_unreadable",
]


class Problem(msgspec.Struct, frozen=True):
    """Why a reconciliation could not do what the spec asks for."""

    reason: Reason
    message: str


class Verdict(NamedTuple):
    """A condition's status, reason and message."""

    holds: bool | None
    """None is Unknown."""
    reason: Reason
    message: str = ""


_CARRIED_OUT = Verdict(True, Reason.AS_EXPECTED, "the plan is carried out")
_STILL_SERVING = "; the table is served with its previous spec"


def table_ready(available: Verdict, *, generation: int, problem: Problem | None, paused: str) -> Verdict:
    """Ready of a Table: Available, and the newest spec is applied.

    `paused` is why a changed spec is not applied; empty if it is, or if the spec has not changed.
    """
    if not available.holds:
        return available
    if problem is not None:
        return Verdict(False, problem.reason, _not_applied(generation, problem.message) + _STILL_SERVING)
    if paused:
        return Verdict(False, Reason.PAUSED, _not_applied(generation, paused) + _STILL_SERVING)
    return available


def table_ready_unreadable(problem: Problem) -> Verdict:
    """Ready of a Table whose keys cannot be read: Unknown if the metastore is unreachable, else False."""
    return Verdict(None if problem.reason is Reason.METASTORE_UNREACHABLE else False, problem.reason, problem.message)


def store_cluster_ready(registered: int, wanted: int, *, generation: int, refused: Problem | None) -> Verdict:
    """Ready of a StoreCluster; `refused` is why its spec cannot be applied unless a user changes something."""
    if refused is not None:
        return Verdict(False, refused.reason, _not_applied(generation, refused.message))
    ready = registered >= wanted
    reason = Reason.AS_EXPECTED if ready else Reason.STORES_NOT_READY
    return Verdict(ready, reason, f"{registered} of {wanted} stores are registered")


def store_cluster_ready_unreadable(problem: Problem) -> Verdict:
    """Ready of a StoreCluster whose keys cannot be read: Unknown."""
    return Verdict(None, problem.reason, problem.message)


def assignment_ready(accepted: Condition | None, *, partitions: int, leaderless: int, moving: int) -> Verdict:
    """Ready of a PartitionAssignment; `accepted` is None if the user has chosen nothing in it."""
    if accepted is not None and accepted.status != "True":
        return Verdict(False, Reason(accepted.reason), accepted.message)
    if leaderless:
        return Verdict(
            False, Reason.NO_LEADER, f"{leaderless} of {partitions} partitions have no leader; see the Table"
        )
    if accepted is not None and moving:
        return Verdict(False, Reason.REBALANCING, f"{moving} of {partitions} partitions are moving")
    return Verdict(True, Reason.AS_EXPECTED)


def plan_ready(approved: Condition, progress: Progress | None) -> Verdict:
    """Ready of the newest plan's RebalancePlan."""
    if approved.status != "True":
        return Verdict(False, Reason(approved.reason), approved.message)
    if not is_complete(progress):
        done, total = (progress.moves_done, progress.moves_total) if progress is not None else (0, 0)
        return Verdict(False, Reason.REBALANCING, f"{done} of {total} partitions have reached their targets")
    return _CARRIED_OUT


def ended_plan_ready(state: str) -> Verdict:
    """Ready of an older plan's RebalancePlan: nothing is left to do for it."""
    return _CARRIED_OUT if state == "Done" else Verdict(True, Reason.SUPERSEDED, "a newer plan has replaced this one")


def degraded(problems: Iterable[Problem]) -> Verdict:
    """Return the condition Degraded of any kind: all problems, with the reason of the first, which is the worst."""
    found = list(problems)
    reason = found[0].reason if found else Reason.AS_EXPECTED
    return Verdict(bool(found), reason, "; ".join(problem.message for problem in found))


def is_complete(progress: Progress | None) -> bool:
    """Whether every partition has reached its target."""
    return progress is not None and progress.percentage == 100


def _not_applied(generation: int, why: str) -> str:
    return f"generation {generation} is not applied: {why}"

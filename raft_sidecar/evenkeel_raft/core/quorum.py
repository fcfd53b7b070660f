"""Quorums: majorities of a configuration, or of both halves of a joint one.

An ordinary configuration is treated as a joint one with an empty outgoing half. An empty half never blocks a decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["LOST", "PENDING", "UNBOUNDED", "WON", "acknowledged", "has_quorum", "joint_acknowledged", "vote_result"]

PENDING: Final = 0
WON: Final = 1
LOST: Final = 2

# The value that an empty half acknowledges; it never lowers the other half's.
UNBOUNDED: Final = 1 << 62


def acknowledged(values: list[int]) -> int:
    """Return the highest number that a majority of the values reaches. Sorts the list in place."""
    count = len(values)
    if count == 0:
        return UNBOUNDED
    values.sort()
    return values[(count - 1) // 2]


def joint_acknowledged(incoming: list[int], outgoing: list[int]) -> int:
    """Return the highest number that a majority of each half reaches."""
    return min(acknowledged(incoming), acknowledged(outgoing))


def _half_result(voters: Sequence[int], votes: Mapping[int, bool]) -> int:
    if not voters:
        return WON
    need = len(voters) // 2 + 1
    granted = sum(1 for v in voters if votes.get(v) is True)
    if granted >= need:
        return WON
    missing = sum(1 for v in voters if v not in votes)
    return PENDING if granted + missing >= need else LOST


def vote_result(voters: Sequence[int], outgoing: Sequence[int], votes: Mapping[int, bool]) -> int:
    """Return WON, LOST or PENDING. A joint election must be won in both halves and is lost in either."""
    first = _half_result(voters, votes)
    second = _half_result(outgoing, votes)
    if first == second:
        return first
    return LOST if LOST in (first, second) else PENDING


def has_quorum(voters: Sequence[int], outgoing: Sequence[int], present: frozenset[int] | set[int]) -> bool:
    """Whether the present replicas are a majority of each half."""
    return vote_result(voters, outgoing, dict.fromkeys(present, True)) == WON and bool(voters)

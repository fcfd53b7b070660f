"""Sides measured in turns: a noisy machine is as noisy for all, and only the ratio of neighbours travels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from bench.report import Row

__all__ = ["beside", "in_turn", "median_row"]

Window = Callable[[], Awaitable[float]]
WINDOWS = 5


async def in_turn(*sides: Window, windows: int = WINDOWS) -> list[tuple[float, ...]]:
    """Take windows of all sides in turn, after one of each that does not count."""
    return [tuple([await side() for side in sides]) for _ in range(windows + 1)][1:]


def median_row(bench: str, case: str, unit: str, pairs: Iterable[tuple[float, float]]) -> Row:
    """The pair whose ratio is the median."""
    ordered = sorted(pairs, key=lambda pair: pair[0] / pair[1])
    value, reference = ordered[len(ordered) // 2]
    return Row(bench, case, value, unit, reference, value / reference)


async def beside(case: str, unit: str, *, ours: Window, theirs: Window) -> Row:
    """A row of raft's: ours beside one other."""
    pairs = [(mine, other) for mine, other in await in_turn(ours, theirs)]
    return median_row("raft", case, unit, pairs)

"""Alternating measurement windows: noise affects all sides alike, and only ratios of neighbouring windows count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from bench.report import Row

__all__ = ["compare", "in_turn", "median_row"]

Window = Callable[[], Awaitable[float]]
WINDOWS = 5


async def in_turn(*sides: Window, windows: int = WINDOWS) -> list[tuple[float, ...]]:
    """Measure all sides in turn, after one warm-up window of each."""
    return [tuple([await side() for side in sides]) for _ in range(windows + 1)][1:]


def median_row(bench: str, case: str, unit: str, pairs: Iterable[tuple[float, float]]) -> Row:
    """Return the row of the pair with the median ratio."""
    ordered = sorted(pairs, key=lambda pair: pair[0] / pair[1])
    value, reference = ordered[len(ordered) // 2]
    return Row(bench, case, value, unit, reference, value / reference)


async def compare(case: str, unit: str, *, ours: Window, theirs: Window) -> Row:
    """Return a row of the raft benchmark that compares two sides."""
    pairs = [(mine, other) for mine, other in await in_turn(ours, theirs)]
    return median_row("raft", case, unit, pairs)

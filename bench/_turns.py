"""Two sides measured in turns: a noisy machine is as noisy for both, and only the ratio of neighbours travels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bench.report import Row

__all__ = ["beside"]

Window = Callable[[], Awaitable[float]]


async def beside(case: str, unit: str, *, ours: Window, theirs: Window, windows: int = 5) -> Row:
    """Take windows of both sides in turn, after one of each that does not count; the pair of median ratio is shown."""
    pairs = [(await ours(), await theirs()) for _ in range(windows + 1)][1:]
    value, reference = sorted(pairs, key=lambda pair: pair[0] / pair[1])[windows // 2]
    return Row("raft", case, value, unit, reference, value / reference)

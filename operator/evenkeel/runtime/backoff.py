"""Exponential backoff with jitter."""

from __future__ import annotations

import random
from typing import Protocol

from evenkeel.runtime.clock import Clock, SystemClock

__all__ = ["Backoff", "Rng"]


class Rng(Protocol):
    """The part of `random.Random` that jitter needs."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a random number between `a` and `b`."""
        ...


class Backoff:
    """Waits that double after every attempt, with jitter so that many clients do not retry at the same time."""

    def __init__(
        self, *, clock: Clock | None = None, rng: Rng | None = None, first: float = 0.02, longest: float = 1.0
    ) -> None:
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._first = first
        self._longest = longest
        self._next = first

    def reset(self) -> None:
        """Start again with the shortest wait, after an attempt that succeeded."""
        self._next = self._first

    async def wait(self) -> None:
        """Wait, and double the next wait."""
        seconds, self._next = self._next, min(self._next * 2, self._longest)
        await self._clock.sleep(seconds * self._rng.uniform(0.5, 1.0))

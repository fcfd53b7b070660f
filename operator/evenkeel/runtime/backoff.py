"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from typing import Protocol

from evenkeel.runtime.clock import Clock

__all__ = ["Backoff", "Rng"]


class Rng(Protocol):
    """The part of `random.Random` that jitter draws on."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number between the two."""
        ...


class Backoff:
    """Waits that double from attempt to attempt, with jitter so that many do not come back as one."""

    def __init__(self, *, clock: Clock, rng: Rng, first: float = 0.02, longest: float = 1.0) -> None:
        self._clock = clock
        self._rng = rng
        self._first = first
        self._longest = longest
        self._next = first

    def reset(self) -> None:
        """Begin anew: the last attempt succeeded."""
        self._next = self._first

    async def wait(self) -> None:
        """Wait once, and longer the next time."""
        seconds, self._next = self._next, min(self._next * 2, self._longest)
        await self._clock.sleep(seconds * self._rng.uniform(0.5, 1.0))

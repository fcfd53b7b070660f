"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from typing import Protocol

from evenkeel.metastore.clock import Clock

__all__ = ["Backoff", "Chance"]


class Chance(Protocol):
    """The part of `random.Random` that jitter draws on."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number between the two."""
        ...


class Backoff:
    """Waits that double from attempt to attempt, with jitter so that many do not come back as one."""

    def __init__(self, *, clock: Clock, chance: Chance, first: float = 0.02, longest: float = 1.0) -> None:
        self._clock = clock
        self._chance = chance
        self._first = first
        self._longest = longest
        self._next = first

    def reset(self) -> None:
        """Begin anew: the last attempt succeeded."""
        self._next = self._first

    async def wait(self) -> None:
        """Wait once, and longer the next time."""
        seconds, self._next = self._next, min(self._next * 2, self._longest)
        await self._clock.sleep(seconds * self._chance.uniform(0.5, 1.0))

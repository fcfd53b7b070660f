"""What to look at again, and when.

A thing that is heard of many times in a moment is looked at once; while it is looked at, nobody else looks at it, and
what is heard of it meanwhile means one more look. One thing may come before all others: while it is due or under way,
nothing else is begun.
"""

from __future__ import annotations

import asyncio
from typing import Final

from evenkeel.runtime.clock import Clock

__all__ = ["Worklist"]

PAUSE_SECONDS: Final = 0.2
"""Between the beginnings of two looks at the same thing, so that a burst of events is one look."""


class Worklist:
    """Names, and when each is due."""

    def __init__(self, clock: Clock, *, before_all: str) -> None:
        self._clock = clock
        self._before_all = before_all
        self._due: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._under_way: set[str] = set()
        self._changed = asyncio.Event()

    def add(self, name: str, *, after: float = 0.0) -> None:
        """Have something looked at, in so many seconds; sooner where that was said already."""
        due = max(self._clock.now() + after, self._begun.get(name, float("-inf")) + PAUSE_SECONDS)
        self._due[name] = min(due, self._due.get(name, due))
        self._changed.set()

    @property
    def at_rest(self) -> bool:
        """Whether nothing is looked at, and nothing is due."""
        return not self._under_way and all(due > self._clock.now() for due in self._due.values())

    async def take(self) -> str:
        """The next thing to look at; tell `done` afterwards."""
        while True:
            self._changed.clear()
            name = min(self._ready(), key=lambda candidate: self._due[candidate], default=None)
            now = self._clock.now()
            if name is not None and self._due[name] <= now:
                del self._due[name]
                self._begun = {other: at for other, at in self._begun.items() if at > now - PAUSE_SECONDS}
                self._begun[name] = now
                self._under_way.add(name)
                self._changed.set()
                return name
            await self._wait(None if name is None else self._due[name])

    def done(self, name: str) -> None:
        """Somebody else may look at it now."""
        self._under_way.discard(name)
        self._changed.set()

    def _ready(self) -> list[str]:
        first = self._before_all
        if first in self._under_way:
            return []
        if self._due.get(first, float("inf")) <= self._clock.now():
            return [first]
        return [name for name in self._due if name not in self._under_way]

    async def _wait(self, until: float | None) -> None:
        timer = self._clock.call_at(until, self._changed.set) if until is not None else None
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

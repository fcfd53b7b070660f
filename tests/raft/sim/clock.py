"""Virtual time: events in order of time, then of creation."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """An event queue; times are in milliseconds."""

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        self._made = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def later(self, delay: int, action: Callable[..., None], *args: Any) -> None:
        """Schedule an action after a delay."""
        self._made += 1
        heapq.heappush(self._queue, (self.now + delay, self._made, action, args))

    def run(self, until: int, *, enough: Callable[[], bool] | None = None) -> bool:
        """Run events up to a time or until `enough` holds; returns whether it does."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action, args = heapq.heappop(self._queue)
            self.events += 1
            action(*args)
            if enough is not None and self.events % 64 == 0 and enough():
                return True
        self.now = until
        return enough is not None and enough()

"""How fast snapshots are written and loaded.

Lower priority is not enough: it counts only among the threads of one process or container, and the sidecar, which
clients wait for, is another one. So copying goes in small steps. While clients are served the steps take turns, and
after each there is a rest in which nothing is copied: it gets a third of one processor, and less where it has to wait
for one. While nobody is served there are no rests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["SnapshotThrottle"]

_LATELY_SECONDS: Final = 0.25
_RESTS: Final = 2.0
"""How much longer than it took to do a step the rest after it is."""
_LONGEST_REST: Final = 1.0
_Result = TypeVar("_Result")


class SnapshotThrottle:
    """One for a store; steps are done on any thread."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._served_at = float("-inf")
        self._turn = threading.Lock()
        self._stopped = threading.Event()
        self.rest: Callable[[float], object] = self._stopped.wait
        """Waits so many seconds."""

    def served(self) -> None:
        """Take note that somebody reads or writes."""
        self._served_at = self._now()

    def step(self, work: Callable[[], _Result]) -> _Result:
        """Do a step, and rest after it where somebody is served."""
        if not self._served_lately():
            return work()
        with self._turn:
            began = self._now()
            result = work()
            if self._served_lately():
                self.rest(min(_RESTS * (self._now() - began), _LONGEST_REST))
            return result

    def stop(self) -> None:
        """Rest no more."""
        self._stopped.set()

    def _served_lately(self) -> bool:
        return self._now() - self._served_at < _LATELY_SECONDS

"""Limits how fast snapshots are written and loaded while clients are served.

A low thread priority is not enough: it counts only within one process or container, and clients also wait for the
sidecar, which is another one. So copying proceeds in small steps. While clients are active, the steps take turns and
each is followed by a pause, so that copying uses at most a third of one CPU. Without clients there are no pauses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["SnapshotThrottle"]

_ACTIVE_SECONDS: Final = 0.25
"""How long after a request clients count as active."""
_PAUSE_FACTOR: Final = 2.0
"""The pause after a step is this many times as long as the step took."""
_MAX_PAUSE: Final = 1.0
_Result = TypeVar("_Result")


class SnapshotThrottle:
    """One per store; steps run on any thread."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._client_at = float("-inf")
        self._turn = threading.Lock()
        self._stopped = threading.Event()
        self.pause: Callable[[float], object] = self._stopped.wait
        """Waits for a number of seconds."""

    def note_client(self) -> None:
        """Record that a client reads or writes."""
        self._client_at = self._now()

    def step(self, work: Callable[[], _Result]) -> _Result:
        """Run a step, then pause if clients are active."""
        if not self._clients_active():
            return work()
        with self._turn:
            began = self._now()
            result = work()
            if self._clients_active():
                self.pause(min(_PAUSE_FACTOR * (self._now() - began), _MAX_PAUSE))
            return result

    def stop(self) -> None:
        """End the present pause and all later ones at once."""
        self._stopped.set()

    def _clients_active(self) -> bool:
        return self._now() - self._client_at < _ACTIVE_SECONDS

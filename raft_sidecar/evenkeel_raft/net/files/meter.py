"""How fast snapshots come in: bytes, and the seconds in which at least one was on its way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from evenkeel.runtime.clock import Clock

__all__ = ["CopyMeter"]


class CopyMeter:
    """Counts since the process began."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._under_way = 0
        self._since = 0.0
        self._seconds = 0.0
        self.bytes = 0

    @property
    def seconds(self) -> float:
        """For how long at least one snapshot was coming in."""
        return self._seconds + (self._clock.now() - self._since if self._under_way else 0.0)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """A snapshot is coming in."""
        if not self._under_way:
            self._since = self._clock.now()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._seconds += self._clock.now() - self._since

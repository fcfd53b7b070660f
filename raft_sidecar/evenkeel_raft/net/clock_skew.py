"""Measures how far the wall clocks of peers differ from ours, over the raft links.

One end sends the reading of its monotonic clock (`Alive.asked`). The other end answers with that reading and with its
own wall clock. It read its wall clock between request and answer, so the error is at most half the round-trip time.
Nothing depends on correct wall clocks; the result is only reported. Peers of the first release do not answer and are
not measured.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from evenkeel.runtime.clock import Clock, Timer
from evenkeel_raft.net.peer_frames import Alive

__all__ = ["SKEW_SECONDS", "Skew", "SkewProbe", "clock_ahead"]

SKEW_SECONDS: Final = 1.0
"""Skew from which a clock counts as wrong. NTP keeps clocks within milliseconds."""
_KEPT: Final = 4


class Skew(NamedTuple):
    """Seconds that a peer's wall clock is ahead of ours (negative: behind), accurate to within `error`."""

    seconds: float
    error: float


class SkewProbe:
    """Measures the peer's clock over one connection and answers the peer's requests."""

    def __init__(
        self, send: Callable[[Alive], None], *, clock: Clock, wall_clock: Callable[[], float], seconds: float
    ) -> None:
        self._send = send
        self._clock = clock
        self._wall_clock = wall_clock
        self._seconds = seconds
        self._asked: float | None = None
        self._measured: deque[Skew] = deque(maxlen=_KEPT)
        self._timer = self._ask()

    @property
    def skew(self) -> Skew | None:
        """The most accurate of the last few measurements, the newest among equals; None before the first."""
        return min(reversed(self._measured), key=lambda skew: skew.error, default=None)

    def cancel(self) -> None:
        """Stop measuring."""
        self._timer.cancel()

    def on_frame(self, frame: Alive) -> None:
        """Answer a request, or record an answer."""
        if frame.asked is not None:
            self._send(Alive(answers=frame.asked, wall=self._wall_clock()))
        elif frame.answers is not None and frame.answers == self._asked:
            half = (self._clock.now() - frame.answers) / 2
            self._measured.append(Skew(frame.wall + half - self._wall_clock(), half))
            self._asked = None

    def _ask(self) -> Timer:
        self._asked = self._clock.now()
        self._send(Alive(asked=self._asked))
        return self._clock.call_at(self._asked + self._seconds, self._again)

    def _again(self) -> None:
        self._timer = self._ask()


def clock_ahead(skews: Collection[Skew]) -> int:
    """Return how many seconds our wall clock is ahead of most stores' (negative: behind); 0 below the threshold.

    With only two stores neither is in the majority, so each reports the full difference.
    """
    if not skews:
        return 0
    others = [skew.seconds for skew in skews]
    ahead = -statistics.median(others if len(others) == 1 else [0.0, *others])
    return round(ahead) if abs(ahead) - max(skew.error for skew in skews) >= SKEW_SECONDS else 0

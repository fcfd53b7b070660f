"""How far the wall clocks of other stores are from ours, measured over the links to them.

One end asks with what its monotonic clock says (`Alive.asked`); the other answers with that and with its wall clock.
The peer read its wall clock at some moment between question and answer, so the measure is true to within half of the
time that took. Nothing depends on wall clocks being right: the result is only reported. A peer of the first release
does not answer, and is not measured.
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
"""From here on a clock counts as wrong. What keeps time by NTP is within milliseconds."""
_KEPT: Final = 4


class Skew(NamedTuple):
    """How many seconds a peer's wall clock is ahead of ours, or behind where negative; true to within `error`."""

    seconds: float
    error: float


class SkewProbe:
    """Measures the other end of one connection, and answers its questions."""

    def __init__(
        self, send: Callable[[Alive], None], *, clock: Clock, wall: Callable[[], float], seconds: float
    ) -> None:
        self._send = send
        self._clock = clock
        self._wall = wall
        self._seconds = seconds
        self._asked: float | None = None
        self._measured: deque[Skew] = deque(maxlen=_KEPT)
        self._timer = self._ask()

    @property
    def skew(self) -> Skew | None:
        """The best of the last few measurements, of equal ones the newest; None where there is none yet."""
        return min(reversed(self._measured), key=lambda skew: skew.error, default=None)

    def cancel(self) -> None:
        """The connection is gone."""
        self._timer.cancel()

    def heard(self, frame: Alive) -> None:
        """Answer a question, or take an answer."""
        if frame.asked is not None:
            self._send(Alive(answers=frame.asked, wall=self._wall()))
        elif frame.answers is not None and frame.answers == self._asked:
            half = (self._clock.now() - frame.answers) / 2
            self._measured.append(Skew(frame.wall + half - self._wall(), half))
            self._asked = None

    def _ask(self) -> Timer:
        self._asked = self._clock.now()
        self._send(Alive(asked=self._asked))
        return self._clock.call_at(self._asked + self._seconds, self._again)

    def _again(self) -> None:
        self._timer = self._ask()


def clock_ahead(skews: Collection[Skew]) -> int:
    """Return how many seconds our wall clock is ahead of most stores', or behind; 0 where that is less than counts.

    Of two stores neither is most: each is as far from the other as they differ.
    """
    if not skews:
        return 0
    others = [skew.seconds for skew in skews]
    ahead = -statistics.median(others if len(others) == 1 else [0.0, *others])
    return round(ahead) if abs(ahead) - max(skew.error for skew in skews) >= SKEW_SECONDS else 0

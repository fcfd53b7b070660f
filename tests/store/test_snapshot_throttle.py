"""The throttle pauses copying only while clients are active."""

from __future__ import annotations

import pytest

from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle


class Throttled:
    """A throttle with its own clock, and the pauses that it made."""

    def __init__(self) -> None:
        self.time = 0.0
        self.pauses: list[float] = []
        self.throttle = SnapshotThrottle(now=lambda: self.time)
        self.throttle.pause = self.pauses.append

    def work(self, seconds: float) -> None:
        self.time += seconds


def test_no_clients() -> None:
    """Without client requests there are no pauses."""
    throttled = Throttled()
    throttled.throttle.step(lambda: throttled.work(0.02))
    throttled.throttle.note_client()
    throttled.work(0.3)
    throttled.throttle.step(lambda: throttled.work(0.02))
    assert throttled.pauses == []


@pytest.mark.parametrize(("seconds", "pause"), [(0.02, 0.04), (0.2, 0.4)])
def test_active_clients(seconds: float, pause: float) -> None:
    """While clients are active, the pause after a step is twice as long as the step took."""
    throttled = Throttled()
    throttled.throttle.note_client()
    throttled.throttle.step(lambda: throttled.work(seconds))
    assert throttled.pauses == [pytest.approx(pause)]


def test_pause_is_bounded() -> None:
    """However long a step took, the pause is at most a second."""
    throttled = Throttled()
    throttled.throttle.note_client()

    def slow() -> None:
        throttled.work(60)
        throttled.throttle.note_client()

    throttled.throttle.step(slow)
    assert throttled.pauses == [1.0]


def test_failing_step() -> None:
    """The caller gets the error, and the next step runs."""
    throttled = Throttled()
    throttled.throttle.note_client()
    with pytest.raises(ZeroDivisionError):
        throttled.throttle.step(lambda: 1 // 0)
    assert throttled.throttle.step(lambda: 7) == 7

"""How fast snapshots are written and loaded."""

from __future__ import annotations

import pytest

from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle


class Paced:
    """A pace in a time of its own, and what it rested."""

    def __init__(self) -> None:
        self.time = 0.0
        self.rests: list[float] = []
        self.throttle = SnapshotThrottle(now=lambda: self.time)
        self.throttle.rest = self.rests.append

    def work(self, seconds: float) -> None:
        self.time += seconds


def test_nobody_is_served() -> None:
    """Where nobody reads or writes there is no rest."""
    paced = Paced()
    paced.throttle.step(lambda: paced.work(0.02))
    paced.throttle.served()
    paced.work(0.3)
    paced.throttle.step(lambda: paced.work(0.02))
    assert paced.rests == []


@pytest.mark.parametrize(("seconds", "rest"), [(0.02, 0.04), (0.2, 0.4)])
def test_somebody_is_served(seconds: float, rest: float) -> None:
    """While somebody is served a step is followed by a rest twice as long, the longer where it had to wait itself."""
    paced = Paced()
    paced.throttle.served()
    paced.throttle.step(lambda: paced.work(seconds))
    assert paced.rests == [pytest.approx(rest)]


def test_a_slow_step_does_not_stop_everything() -> None:
    """However long a step took, the next is not put off for long."""
    paced = Paced()
    paced.throttle.served()

    def slow() -> None:
        paced.work(60)
        paced.throttle.served()

    paced.throttle.step(slow)
    assert paced.rests == [1.0]


def test_a_step_that_fails() -> None:
    """An error goes to whoever asked, and the next step is done."""
    paced = Paced()
    paced.throttle.served()
    with pytest.raises(ZeroDivisionError):
        paced.throttle.step(lambda: 1 // 0)
    assert paced.throttle.step(lambda: 7) == 7

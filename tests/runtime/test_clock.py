"""Timers of the system clock, on asyncio's event loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from evenkeel.runtime.clock import SystemClock
from evenkeel.runtime.event_loop import loop_factory

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": loop_factory()}


@pytest.mark.parametrize("factory", LOOPS.values(), ids=LOOPS)
def test_no_timer_is_early(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A timer never fires early, although uvloop rounds delays to milliseconds, also down."""

    async def main() -> list[float]:
        clock = SystemClock()
        started = clock.now()
        whens = [started + number * 0.00013 for number in range(300)]
        delays: list[float] = []

        def record(when: float) -> None:
            delays.append(clock.now() - when)

        for when in whens:
            clock.call_at(when, partial(record, when))
        await clock.sleep(0.05)
        while len(delays) < len(whens):
            await clock.sleep(0.001)
        return delays

    with asyncio.Runner(loop_factory=factory) as runner:
        assert min(runner.run(main())) >= 0

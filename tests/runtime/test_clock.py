"""A clock's timers, on the loops that processes run on."""

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
    """Whoever is called finds that the time has come: uvloop rounds to milliseconds, down as well as up."""

    async def main() -> list[float]:
        clock = SystemClock()
        begun = clock.now()
        whens = [begun + number * 0.00013 for number in range(300)]
        found: list[float] = []

        def note(when: float) -> None:
            found.append(clock.now() - when)

        for when in whens:
            clock.call_at(when, partial(note, when))
        await clock.sleep(0.05)
        while len(found) < len(whens):
            await clock.sleep(0.001)
        return found

    with asyncio.Runner(loop_factory=factory) as runner:
        assert min(runner.run(main())) >= 0

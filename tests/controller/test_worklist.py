"""What is looked at again, and when."""

from __future__ import annotations

import asyncio

from evenkeel.controller.worklist import PAUSE_SECONDS, Worklist
from evenkeel.runtime.clock import VirtualClock


class Workers:
    """Two who take what comes, and finish when they are told to."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.work = Worklist(self.clock, before_all="first")
        self.taken: list[str] = []
        self.tasks = [asyncio.ensure_future(self._labour()) for _ in range(2)]
        self._finish: dict[str, asyncio.Event] = {}

    async def _labour(self) -> None:
        while True:
            name = await self.work.take()
            self.taken.append(name)
            self._finish[name] = asyncio.Event()
            await self._finish[name].wait()
            self.work.done(name)

    async def turn(self, seconds: float = 0.0) -> list[str]:
        """Let time pass; what was taken meanwhile."""
        self.clock.advance(seconds)
        for _ in range(20):
            await asyncio.sleep(0)
        taken, self.taken = self.taken, []
        return taken

    async def finish(self, name: str) -> list[str]:
        self._finish.pop(name).set()
        return await self.turn()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_burst_is_one_look_and_one_more() -> None:
    """What is heard during a look means one look after it, not before a moment has passed."""
    workers = Workers()
    for _ in range(10):
        workers.work.add("a")
    assert await workers.turn() == ["a"]
    for _ in range(10):
        workers.work.add("a")
    assert await workers.turn(PAUSE_SECONDS) == []
    assert await workers.finish("a") == ["a"]
    workers.work.add("a")
    assert await workers.finish("a") == []
    assert not workers.work.at_rest or workers.clock.now() < 2 * PAUSE_SECONDS
    assert await workers.turn(PAUSE_SECONDS) == ["a"]
    await workers.finish("a")
    assert workers.work.at_rest
    await workers.close()


async def test_different_things_are_looked_at_side_by_side() -> None:
    """As many as there are workers; the next follows when one is done."""
    workers = Workers()
    for name in "abc":
        workers.work.add(name)
    assert await workers.turn() == ["a", "b"]
    assert await workers.finish("a") == ["c"]
    await workers.close()


async def test_what_comes_first_comes_alone() -> None:
    """While it is due or looked at nothing else is begun; what is under way goes on."""
    workers = Workers()
    workers.work.add("a")
    assert await workers.turn() == ["a"]
    workers.work.add("b")
    workers.work.add("first")
    assert await workers.turn() == ["first"]
    workers.work.add("c")
    assert await workers.finish("a") == []
    assert await workers.finish("first") == ["b", "c"]
    await workers.close()


async def test_later_is_later_unless_somebody_says_sooner() -> None:
    """A look that is due in a while is brought forward, never put off."""
    workers = Workers()
    workers.work.add("a", after=10)
    workers.work.add("first", after=20)
    assert await workers.turn(5) == []
    workers.work.add("a", after=30)
    assert await workers.turn(4.9) == []
    assert await workers.turn(0.1) == ["a"]
    await workers.finish("a")
    workers.work.add("a", after=10)
    workers.work.add("a", after=1)
    assert await workers.turn(1) == ["a"]
    await workers.finish("a")
    assert await workers.turn(9) == ["first"]
    await workers.close()

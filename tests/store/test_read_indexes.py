"""Read indexes: never from before a read began, and shared by those who wait."""

from __future__ import annotations

import asyncio

import pytest

from evenkeel.errors import UnavailableError
from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire.socket_messages import ReadAt, ReadOutcome, Unavailable
from evenkeel_store.serving.read_indexes import ReadIndexes
from tests.wire.support import turns


class Asked:
    """Questions that wait to be answered."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.waiting: list[asyncio.Future[ReadOutcome]] = []
        self.count = 0
        self.reads = ReadIndexes(self._ask, clock=self.clock, timeout=5.0)

    async def _ask(self, group: int) -> ReadOutcome:
        self.count += 1
        future: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return await future

    async def answer(self, outcome: ReadOutcome) -> None:
        await turns(lambda: bool(self.waiting))
        self.waiting.pop(0).set_result(outcome)


async def test_readers_share_the_next_question() -> None:
    """Whoever comes while a question is under way shares the next one, and does not take the answer of the first."""
    asked = Asked()
    first = asyncio.create_task(asked.reads.index(7))
    await turns(lambda: asked.count == 1)
    later = [asyncio.create_task(asked.reads.index(7)) for _ in range(50)]
    other = asyncio.create_task(asked.reads.index(8))
    await turns(lambda: asked.count == 2)
    await asked.answer(ReadAt(10))
    assert await first == 10
    assert not any(task.done() for task in later)
    await asked.answer(ReadAt(99))
    assert await other == 99
    await turns(lambda: asked.count == 3)
    last = asyncio.create_task(asked.reads.index(7))
    await asked.answer(ReadAt(12))
    assert set(await asyncio.gather(*later)) == {12}
    await asked.answer(ReadAt(13))
    assert await last == 13
    assert asked.count == 4


async def test_asked_again_until_patience_ends() -> None:
    """Where nobody can say who leads the question is asked again, for some time; the next reader starts anew."""
    asked = Asked()
    reading = asyncio.create_task(asked.reads.index(7))
    await asked.answer(Unavailable())
    await turns(lambda: asked.count == 2, asked.clock)
    while not reading.done():
        await asked.answer(Unavailable())
        asked.clock.advance(1.0)
        await turns(lambda: reading.done() or bool(asked.waiting), asked.clock)
    with pytest.raises(UnavailableError, match="no leader confirmed the read within 5 s; retry later"):
        await reading
    again = asyncio.create_task(asked.reads.index(7))
    await asked.answer(ReadAt(3))
    assert await again == 3


async def test_an_answer_that_never_comes_blocks_nobody() -> None:
    """A lost answer is asked for again at its deadline, for its reader and for those who wait behind it."""
    asked = Asked()
    first, later = (asyncio.create_task(asked.reads.index(7)) for _ in range(2))
    await turns(lambda: asked.count == 1)
    lost = asked.waiting.pop()
    asked.clock.advance(2.0)
    await turns(lambda: asked.count == 2, asked.clock)
    assert lost.cancelled()
    await asked.answer(ReadAt(10))
    await asked.answer(ReadAt(11))
    assert (await first, await later) == (10, 11)


async def test_a_read_that_nobody_answers_fails_in_time() -> None:
    """A sidecar that never answers costs each reader an error that says to retry, and no more than its patience."""
    asked = Asked()
    tasks = [asyncio.create_task(asked.reads.index(7)) for _ in range(3)]
    await turns(lambda: all(task.done() for task in tasks), asked.clock)
    assert asked.clock.now() < 10.0
    for task in tasks:
        with pytest.raises(UnavailableError, match="retry later"):
            await task


async def test_cancelled_reader_does_not_cancel_others() -> None:
    """A reader that gives up leaves the question to those who share it."""
    asked = Asked()
    one, two = (asyncio.create_task(asked.reads.index(7)) for _ in range(2))
    await turns(lambda: asked.count == 1)
    one.cancel()
    await asked.answer(ReadAt(1))
    await asked.answer(ReadAt(2))
    assert await two == 2


async def test_age_counts_from_the_question() -> None:
    """An index is as old as its question, not as its answer."""
    asked = Asked()
    assert asked.reads.confirmed(7, max_age=1e9) is None
    reading = asyncio.create_task(asked.reads.index(7))
    await turns(lambda: asked.count == 1)
    asked.clock.advance(1.5)
    await asked.answer(ReadAt(4))
    await reading
    assert asked.reads.confirmed(7, max_age=1.4) is None
    assert asked.reads.confirmed(7, max_age=1.5) == 4
    asked.reads.forget()
    assert asked.reads.confirmed(7, max_age=1e9) is None

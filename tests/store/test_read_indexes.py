"""Read indexes: requested after a read began, and shared by waiting reads."""

from __future__ import annotations

import asyncio

import pytest

from evenkeel.errors import UnavailableError
from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire.socket_messages import ReadAt, ReadOutcome, Unavailable
from evenkeel_store.serving.read_indexes import ReadIndexes
from tests.wire.support import wait_until


class PendingRequests:
    """Requests for read indexes that wait for an answer."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.waiting: list[asyncio.Future[ReadOutcome]] = []
        self.count = 0
        self.reads = ReadIndexes(self._request, clock=self.clock, timeout=5.0)

    async def _request(self, group: int) -> ReadOutcome:
        self.count += 1
        future: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return await future

    async def answer(self, outcome: ReadOutcome) -> None:
        await wait_until(lambda: bool(self.waiting))
        self.waiting.pop(0).set_result(outcome)


async def test_readers_share_the_next_request() -> None:
    """Reads that arrive while a request is under way share the next one and ignore the answer of the first."""
    requests = PendingRequests()
    first = asyncio.create_task(requests.reads.index(7))
    await wait_until(lambda: requests.count == 1)
    later = [asyncio.create_task(requests.reads.index(7)) for _ in range(50)]
    other = asyncio.create_task(requests.reads.index(8))
    await wait_until(lambda: requests.count == 2)
    await requests.answer(ReadAt(10))
    assert await first == 10
    assert not any(task.done() for task in later)
    await requests.answer(ReadAt(99))
    assert await other == 99
    await wait_until(lambda: requests.count == 3)
    last = asyncio.create_task(requests.reads.index(7))
    await requests.answer(ReadAt(12))
    assert set(await asyncio.gather(*later)) == {12}
    await requests.answer(ReadAt(13))
    assert await last == 13
    assert requests.count == 4


async def test_request_is_repeated_until_the_timeout() -> None:
    """Without a leader the request is repeated until the timeout; the next read starts a new one."""
    requests = PendingRequests()
    reading = asyncio.create_task(requests.reads.index(7))
    await requests.answer(Unavailable())
    await wait_until(lambda: requests.count == 2, requests.clock)
    while not reading.done():
        await requests.answer(Unavailable())
        requests.clock.advance(1.0)
        await wait_until(lambda: reading.done() or bool(requests.waiting), requests.clock)
    with pytest.raises(UnavailableError, match="no leader confirmed the read within 5 s; retry later"):
        await reading
    again = asyncio.create_task(requests.reads.index(7))
    await requests.answer(ReadAt(3))
    assert await again == 3


async def test_lost_answer_blocks_no_read() -> None:
    """A request without an answer is repeated after its timeout, for its own read and those behind it."""
    requests = PendingRequests()
    first, later = (asyncio.create_task(requests.reads.index(7)) for _ in range(2))
    await wait_until(lambda: requests.count == 1)
    lost = requests.waiting.pop()
    requests.clock.advance(2.0)
    await wait_until(lambda: requests.count == 2, requests.clock)
    assert lost.cancelled()
    await requests.answer(ReadAt(10))
    await requests.answer(ReadAt(11))
    assert (await first, await later) == (10, 11)


async def test_unanswered_read_fails_in_time() -> None:
    """If the sidecar never answers, each read fails within its timeout with an error that says to retry."""
    requests = PendingRequests()
    tasks = [asyncio.create_task(requests.reads.index(7)) for _ in range(3)]
    await wait_until(lambda: all(task.done() for task in tasks), requests.clock)
    assert requests.clock.now() < 10.0
    for task in tasks:
        with pytest.raises(UnavailableError, match="retry later"):
            await task


async def test_cancelled_reader_does_not_cancel_others() -> None:
    """A cancelled read does not cancel the request that others share."""
    requests = PendingRequests()
    one, two = (asyncio.create_task(requests.reads.index(7)) for _ in range(2))
    await wait_until(lambda: requests.count == 1)
    one.cancel()
    await requests.answer(ReadAt(1))
    await requests.answer(ReadAt(2))
    assert await two == 2


async def test_age_counts_from_the_request() -> None:
    """The age of an index counts from its request, not from its answer."""
    requests = PendingRequests()
    assert requests.reads.confirmed(7, max_age=1e9) is None
    reading = asyncio.create_task(requests.reads.index(7))
    await wait_until(lambda: requests.count == 1)
    requests.clock.advance(1.5)
    await requests.answer(ReadAt(4))
    await reading
    assert requests.reads.confirmed(7, max_age=1.4) is None
    assert requests.reads.confirmed(7, max_age=1.5) == 4

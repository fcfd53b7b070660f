"""The work queue: each key once, never twice at the same time, in order, later if it failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.runtime.clock import VirtualClock
from evenkeel.runtime.work_queue import Reconcile, Workers, WorkQueue

INTERVAL = 0.2
A, B = ("shop", "a"), ("shop", "b")
Key = tuple[str, str]


async def turns() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


class ManualWorkers:
    """Two workers that finish a key when the test says so."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.queue = WorkQueue[str](self.clock, min_interval=INTERVAL, exclusive="first")
        self.taken: list[str] = []
        self.tasks = [asyncio.ensure_future(self._work()) for _ in range(2)]
        self._finish: dict[str, asyncio.Event] = {}

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            self.taken.append(key)
            self._finish[key] = asyncio.Event()
            await self._finish[key].wait()
            self.queue.done(key)

    async def advance(self, seconds: float = 0.0) -> list[str]:
        """Advance the clock; return the keys taken in that time."""
        self.clock.advance(seconds)
        await turns()
        taken, self.taken = self.taken, []
        return taken

    async def finish(self, key: str) -> list[str]:
        self._finish.pop(key).set()
        return await self.advance()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_burst_is_one_reconciliation_and_one_more() -> None:
    """A key added many times while it runs is taken once more, after the minimum interval."""
    workers = ManualWorkers()
    for _ in range(10):
        workers.queue.add("a")
    assert await workers.advance() == ["a"]
    for _ in range(10):
        workers.queue.add("a")
    assert await workers.advance(INTERVAL) == []
    assert await workers.finish("a") == ["a"]
    workers.queue.add("a")
    assert await workers.finish("a") == []
    assert await workers.advance(INTERVAL) == ["a"]
    await workers.finish("a")
    assert workers.queue.idle
    await workers.close()


async def test_different_keys_run_side_by_side() -> None:
    """As many keys run as there are workers, in the order in which they were added."""
    workers = ManualWorkers()
    workers.queue.add_all("abc")
    assert await workers.advance() == ["a", "b"]
    assert await workers.finish("a") == ["c"]
    assert len(workers.queue) == 2
    await workers.close()


async def test_the_exclusive_key_runs_before_others() -> None:
    """No key begins while the exclusive key is due or running; keys that run already go on."""
    workers = ManualWorkers()
    workers.queue.add("a")
    assert await workers.advance() == ["a"]
    workers.queue.add("b")
    workers.queue.add("first")
    assert await workers.advance() == ["first"]
    workers.queue.add("c")
    assert await workers.finish("a") == []
    assert await workers.finish("first") == ["b", "c"]
    await workers.close()


async def test_a_due_time_moves_forward_only() -> None:
    """Adding a delayed key again makes it due earlier, never later."""
    workers = ManualWorkers()
    workers.queue.add("a", after=10)
    workers.queue.add("first", after=20)
    assert await workers.advance(5) == []
    workers.queue.add("a", after=30)
    assert await workers.advance(4.9) == []
    assert workers.queue.idle
    assert await workers.advance(0.1) == ["a"]
    await workers.finish("a")
    workers.queue.add("a", after=10)
    workers.queue.add("a", after=1)
    assert await workers.advance(1) == ["a"]
    await workers.finish("a")
    assert await workers.advance(9) == ["first"]
    await workers.close()


async def test_take_all_takes_what_is_due_and_leaves_the_rest() -> None:
    """`take_all` returns the due keys in order; a delayed key follows when its time has come."""
    clock = VirtualClock()
    queue = WorkQueue[str](clock)
    queue.add_all("ab")
    queue.add("c", after=1)
    queue.add("a")
    assert list(await queue.take_all()) == ["a", "b"]
    waiting = asyncio.ensure_future(queue.take_all())
    await turns()
    assert not waiting.done()
    clock.advance(1)
    assert list(await waiting) == ["c"]


@asynccontextmanager
async def running(
    reconcile: Reconcile[Key], clock: VirtualClock | None = None
) -> AsyncIterator[tuple[WorkQueue[Key], Workers[Key]]]:
    queue = WorkQueue[Key](clock or VirtualClock())
    workers = Workers(queue, reconcile, subject="table", count=2)
    task = asyncio.create_task(workers.run())
    try:
        yield queue, workers
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_key_never_runs_twice_at_the_same_time() -> None:
    """A second worker does not take a key that is running; it is taken again afterwards."""
    taken: list[Key] = []
    go_on = asyncio.Event()

    async def reconcile(key: Key) -> None:
        taken.append(key)
        await go_on.wait()

    async with running(reconcile) as (queue, _):
        for _ in range(5):
            queue.add(A)
        await turns()
        queue.add(A)
        queue.add(B)
        await turns()
        assert taken == [A, B]
        go_on.set()
        await turns()
        assert taken == [A, B, A]
        assert len(queue) == 0


async def test_failures_are_retried_with_backoff() -> None:
    """A failed key is retried after 1, 2 and 4 seconds while others go on; a success resets the backoff."""
    clock, taken, healthy = VirtualClock(), list[Key](), asyncio.Event()

    async def reconcile(key: Key) -> None:
        taken.append(key)
        if key == A and not healthy.is_set():
            raise InvalidInputError("no")

    async with running(reconcile, clock) as (queue, workers):
        queue.add(A)
        queue.add(B)
        await turns()
        assert taken == [A, B]
        for seconds in (1, 2, 4):
            clock.advance(seconds - 0.1)
            await turns()
            before = taken.count(A)
            clock.advance(0.2)
            await turns()
            assert taken.count(A) == before + 1
        assert workers.failures == 4
        healthy.set()
        queue.add(A)
        await turns()
        clock.advance(100)
        await turns()
        assert taken.count(A) == 5, "a success is not repeated"


async def test_an_unexpected_error_costs_one_reconciliation() -> None:
    """A bug in one key's reconciliation stops neither the queue nor other keys."""
    taken: list[Key] = []

    async def reconcile(key: Key) -> None:
        taken.append(key)
        if key == A:
            raise ZeroDivisionError

    async with running(reconcile) as (queue, _):
        queue.add(A)
        await turns()
        queue.add(B)
        await turns()
        assert taken == [A, B]


async def test_a_fatal_error_ends_the_workers() -> None:
    """An error of a fatal kind is raised by `run`; it is neither retried nor counted."""

    async def reconcile(_: Key) -> None:
        raise InvalidInputError("no")

    queue = WorkQueue[Key](VirtualClock())
    workers = Workers(queue, reconcile, count=2, fatal=(InvalidInputError,))
    queue.add(A)
    with pytest.raises(ExceptionGroup) as raised:
        await workers.run()
    assert raised.group_contains(InvalidInputError)
    assert workers.failures == 0


async def test_a_reconciliation_says_when_it_is_due_again() -> None:
    """The returned seconds requeue the key without an event."""
    clock, taken = VirtualClock(), list[Key]()

    async def reconcile(key: Key) -> float:
        taken.append(key)
        return 10.0

    async with running(reconcile, clock) as (queue, _):
        queue.add(A)
        await turns()
        clock.advance(9)
        await turns()
        assert len(taken) == 1
        clock.advance(1)
        await turns()
        assert len(taken) == 2


async def test_oldest_is_the_longest_wait() -> None:
    """`oldest` tells for how long a key has been due, which probes ask for."""
    clock = VirtualClock()

    async def reconcile(key: Key) -> None:
        await asyncio.Event().wait()

    async with running(reconcile, clock) as (queue, _):
        queue.add(A)
        await turns()
        queue.add(A)
        clock.advance(7)
        assert queue.oldest() == 7

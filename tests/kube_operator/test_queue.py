"""The queue of keys: each once, never twice at the same time, later where it failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evenkeel.errors import InvalidInputError
from evenkeel.runtime.clock import VirtualClock
from evenkeel_operator.kube.object_cache import Key
from evenkeel_operator.kube.queue import Reconcile, WorkQueue
from tests.kube_operator.support import turns

A, B = ("shop", "a"), ("shop", "b")


@asynccontextmanager
async def running(look: Reconcile, clock: VirtualClock | None = None) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(look, workers=2, clock=clock or VirtualClock())
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_key_is_looked_at_once_however_often_it_was_named() -> None:
    """A burst is one look; what is named during a look is looked at again after it."""
    looked: list[Key] = []
    go_on = asyncio.Event()

    async def look(key: Key) -> None:
        looked.append(key)
        await go_on.wait()

    async with running(look) as queue:
        for _ in range(5):
            queue.add(A)
        await turns()
        queue.add(A)
        queue.add(B)
        await turns()
        assert looked == [A, B], "a second worker does not take what is being looked at"
        go_on.set()
        await turns()
        assert looked == [A, B, A]
        assert len(queue) == 0


async def test_failures_come_back_ever_later() -> None:
    """A look that fails is repeated after 1, 2, 4 seconds; others go on meanwhile, and a success forgets it."""
    clock, looked, healthy = VirtualClock(), list[Key](), asyncio.Event()

    async def look(key: Key) -> None:
        looked.append(key)
        if key == A and not healthy.is_set():
            raise InvalidInputError("no")

    async with running(look, clock) as queue:
        queue.add(A)
        queue.add(B)
        await turns()
        assert looked == [A, B]
        for seconds in (1, 2, 4):
            clock.advance(seconds - 0.1)
            await turns()
            before = looked.count(A)
            clock.advance(0.2)
            await turns()
            assert looked.count(A) == before + 1
        assert queue.failures == 4
        healthy.set()
        queue.add(A)
        await turns()
        clock.advance(100)
        await turns()
        assert looked.count(A) == 5, "a success is not repeated"


async def test_a_bug_in_a_look_ends_nothing() -> None:
    """An unexpected error costs one look, not the queue."""
    looked: list[Key] = []

    async def look(key: Key) -> None:
        looked.append(key)
        if key == A:
            raise ZeroDivisionError

    async with running(look) as queue:
        queue.add(A)
        await turns()
        queue.add(B)
        await turns()
        assert looked == [A, B]


async def test_a_look_says_when_to_look_again() -> None:
    """Without an event too."""
    clock, looked = VirtualClock(), list[Key]()

    async def look(key: Key) -> float:
        looked.append(key)
        return 10.0

    async with running(look, clock) as queue:
        queue.add(A)
        await turns()
        clock.advance(9)
        await turns()
        assert len(looked) == 1
        clock.advance(1)
        await turns()
        assert len(looked) == 2


async def test_the_oldest_is_told() -> None:
    """How long something has waited is what a probe asks."""
    clock = VirtualClock()

    async def look(key: Key) -> None:
        await asyncio.Event().wait()

    async with running(look, clock) as queue:
        queue.add(A)
        await turns()
        queue.add(A)
        clock.advance(7)
        assert queue.oldest() == 7

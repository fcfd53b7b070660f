"""From which applied index on a read may be answered.

A read that must see everything acknowledged before it began needs an answer of the sidecar's that was asked for after
it began. Reads that wait while one is under way share the next one, so a hundred readers cost two questions. A question
that the sidecar does not answer in time is asked again: one lost answer must not block every later read of the group.

What was answered last also says how old the rows are at most: at the moment the question was asked, nothing past its
answer was acknowledged to anybody. That is what reads with a bound on their age go by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, NamedTuple

from evenkeel.errors import UnavailableError
from evenkeel.runtime.clock import Clock
from evenkeel.wire.socket_messages import ReadAt, ReadOutcome, Unavailable

__all__ = ["ReadIndexes"]

_RETRY_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 2.0
"""The deadline of one question. A leader answers within a round trip; a follower gives up after an election timeout."""


class _Confirmed(NamedTuple):
    asked_at: float
    newest: int


class ReadIndexes:
    """Read indexes of all groups."""

    def __init__(self, ask: Callable[[int], Awaitable[ReadOutcome]], *, clock: Clock, timeout: float) -> None:
        """`patience` is for how many seconds to ask again when nobody can say who leads."""
        self._ask = ask
        self._clock = clock
        self._timeout = timeout
        self._under_way: dict[int, asyncio.Task[int]] = {}
        self._next: dict[int, asyncio.Task[int]] = {}
        self._confirmed: dict[int, _Confirmed] = {}

    async def index(self, group: int) -> int:
        """Return an index asked for from now on; `UnavailableError` where nobody could say in time."""
        current = self._under_way.get(group)
        if current is None or current.done():
            current = self._under_way[group] = _begin(self._question(group, give_up=self._clock.now() + self._timeout))
            return await asyncio.shield(current)
        following = self._next.get(group)
        if following is None:
            following = self._next[group] = _begin(self._after(group, current))
        return await asyncio.shield(following)

    def confirmed(self, group: int, *, max_age: float) -> int | None:
        """Return an index that was the newest at most so many seconds ago; None where that is not known."""
        known = self._confirmed.get(group)
        if known is None or self._clock.now() - known.asked_at > max_age:
            return None
        return known.newest

    def forget(self) -> None:
        """Rely on nothing that was said before."""
        self._confirmed.clear()

    async def _after(self, group: int, current: asyncio.Task[int]) -> int:
        give_up = self._clock.now() + self._timeout
        await asyncio.wait({current})
        # From here on others wait for the next one.
        self._under_way[group] = self._next.pop(group)
        return await self._question(group, give_up=give_up)

    async def _question(self, group: int, *, give_up: float) -> int:
        while True:
            asked_at = self._clock.now()
            outcome = await self._answer(group)
            if isinstance(outcome, ReadAt):
                self._confirmed[group] = _Confirmed(asked_at, outcome.index)
                return outcome.index
            if self._clock.now() >= give_up:
                raise UnavailableError(f"no leader confirmed the read within {self._timeout:g} s; retry later")
            await self._clock.sleep(_RETRY_SECONDS)

    async def _answer(self, group: int) -> ReadOutcome:
        """Ask once; no answer within the deadline counts as `Unavailable`."""
        asking = asyncio.ensure_future(self._ask(group))
        deadline = self._clock.call_at(self._clock.now() + _ANSWER_SECONDS, lambda: _cancel(asking))
        try:
            await asyncio.wait({asking})
        finally:
            deadline.cancel()
            asking.cancel()
        return Unavailable() if asking.cancelled() else asking.result()


def _cancel(asking: asyncio.Future[ReadOutcome]) -> None:
    asking.cancel()


def _begin(question: Coroutine[None, None, int]) -> asyncio.Task[int]:
    task = asyncio.create_task(question)
    # Whoever asked may be gone by the time it fails.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task

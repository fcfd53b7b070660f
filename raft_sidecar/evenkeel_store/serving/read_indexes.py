"""From which applied index on a read may be answered.

A linearizable read needs a read index that the sidecar was asked for after the read began. Reads that arrive while a
request is under way share the next one, so a hundred readers cost two requests. A request that the sidecar does not
answer in time is repeated: one lost answer must not block every later read of the group.

The last answer also bounds the age of the rows: when it was requested, nothing past its index had been acknowledged.
Reads with a bound on their age rely on that.
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
_REQUEST_TIMEOUT: Final = 2.0
"""The timeout of one request. A leader answers within a round trip, a follower within an election timeout."""


class _Confirmed(NamedTuple):
    requested_at: float
    read_index: int


class ReadIndexes:
    """The read indexes of all groups."""

    def __init__(self, request_index: Callable[[int], Awaitable[ReadOutcome]], *, clock: Clock, timeout: float) -> None:
        """`timeout` is for how many seconds to retry while no leader answers."""
        self._request_index = request_index
        self._clock = clock
        self._timeout = timeout
        self._under_way: dict[int, asyncio.Task[int]] = {}
        self._next: dict[int, asyncio.Task[int]] = {}
        self._confirmed: dict[int, _Confirmed] = {}

    async def index(self, group: int) -> int:
        """Return a read index requested from now on; `UnavailableError` if no leader answers in time."""
        current = self._under_way.get(group)
        if current is None or current.done():
            current = self._under_way[group] = _start(self._confirm(group, deadline=self._clock.now() + self._timeout))
            return await asyncio.shield(current)
        following = self._next.get(group)
        if following is None:
            following = self._next[group] = _start(self._after(group, current))
        return await asyncio.shield(following)

    def confirmed(self, group: int, *, max_age: float) -> int | None:
        """Return an index that was the newest at most `max_age` seconds ago; None if none is known."""
        known = self._confirmed.get(group)
        if known is None or self._clock.now() - known.requested_at > max_age:
            return None
        return known.read_index

    async def _after(self, group: int, current: asyncio.Task[int]) -> int:
        deadline = self._clock.now() + self._timeout
        await asyncio.wait({current})
        # Reads that arrive from here on share the request after this one.
        self._under_way[group] = self._next.pop(group)
        return await self._confirm(group, deadline=deadline)

    async def _confirm(self, group: int, *, deadline: float) -> int:
        while True:
            requested_at = self._clock.now()
            outcome = await self._request(group)
            if isinstance(outcome, ReadAt):
                self._confirmed[group] = _Confirmed(requested_at, outcome.index)
                return outcome.index
            if self._clock.now() >= deadline:
                raise UnavailableError(f"no leader confirmed the read within {self._timeout:g} s; retry later")
            await self._clock.sleep(_RETRY_SECONDS)

    async def _request(self, group: int) -> ReadOutcome:
        """Send one request; a timeout counts as `Unavailable`."""
        request = asyncio.ensure_future(self._request_index(group))
        timer = self._clock.call_at(self._clock.now() + _REQUEST_TIMEOUT, lambda: _cancel(request))
        try:
            await asyncio.wait({request})
        finally:
            timer.cancel()
            request.cancel()
        return Unavailable() if request.cancelled() else request.result()


def _cancel(request: asyncio.Future[ReadOutcome]) -> None:
    request.cancel()


def _start(confirm: Coroutine[None, None, int]) -> asyncio.Task[int]:
    task = asyncio.create_task(confirm)
    # Retrieve the exception: the reader may be gone by the time the task fails.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task

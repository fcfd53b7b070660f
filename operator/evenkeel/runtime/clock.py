"""Time as a dependency, so that a test can let a lease expire without waiting for it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["Clock", "SystemClock", "Timer", "VirtualClock"]

_LOOP_RESOLUTION: Final = 0.001


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Cancel the callback."""
        ...


class Clock(Protocol):
    """A monotonic clock."""

    def now(self) -> float:
        """Return the seconds since an arbitrary fixed point."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` once `now()` reaches `when`."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class _SystemTimer:
    """A timer that never fires early: event loops round times, and an early callback would find nothing due."""

    __slots__ = ("_callback", "_handle", "_loop", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, when: float, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._when = when
        self._callback = callback
        self._handle = loop.call_at(when, self._fire)

    def cancel(self) -> None:
        self._handle.cancel()

    def _fire(self) -> None:
        if self._loop.time() < self._when:
            self._handle = self._loop.call_later(_LOOP_RESOLUTION, self._fire)
        else:
            self._callback()


class SystemClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        """Return the seconds since an arbitrary fixed point."""
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` once `now()` reaches `when`."""
        return _SystemTimer(asyncio.get_running_loop(), when, callback)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class _VirtualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Time that stands still until `advance` moves it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _VirtualTimer]] = []

    def now(self) -> float:
        """Return the seconds advanced so far."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` once `now()` reaches `when`."""
        timer = _VirtualTimer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced that far."""
        woken = asyncio.get_running_loop().create_future()
        timer = self.call_at(self._now + seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def advance(self, seconds: float) -> None:
        """Advance by `seconds` and run the callbacks that become due, in order and each at its time."""
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if timer.callback is not None:
                timer.callback()
        self._now = until

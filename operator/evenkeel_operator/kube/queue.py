"""Keys to be looked at again: each once, however often it was named, and later where the last look failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.clock import Clock, SystemClock, Timer
from evenkeel.runtime.log_context import about
from evenkeel_operator.kube.object_cache import Key

__all__ = ["Reconcile", "WorkQueue"]

log = logging.getLogger(__name__)

Reconcile = Callable[[Key], Awaitable[float | None]]
"""Looks at a key; says in how many seconds to look again, even if nothing happens."""

_FIRST_RETRY: Final = 1.0
_LONGEST_RETRY: Final = 60.0


class WorkQueue:
    """Looks at keys with a few workers, never at the same key twice at once."""

    def __init__(self, look: Reconcile, *, of: str = "object", workers: int = 4, clock: Clock | None = None) -> None:
        """`of` is what logs call a key."""
        self._look = look
        self._of = of
        self._workers = workers
        self._clock = clock or SystemClock()
        self._waiting: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._retry: dict[Key, float] = {}
        self._timers: dict[Key, Timer] = {}
        self._news = asyncio.Event()
        self.failures = 0
        """How many looks have failed so far."""

    def add(self, key: Key) -> None:
        """Look at the key soon."""
        self._waiting.setdefault(key, self._clock.now())
        self._news.set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._busy - self._waiting.keys())

    def oldest(self) -> float:
        """For how many seconds the longest-waiting key has waited."""
        now = self._clock.now()
        return max((now - since for since in self._waiting.values()), default=0.0)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._workers):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._next()
            try:
                with about(**{self._of: "/".join(key)}):
                    again = await self._try(key)
            finally:
                self._busy.discard(key)
                self._news.set()
            self._later(key, again)

    async def _try(self, key: Key) -> float | None:
        try:
            again = await self._look(key)
            self._retry.pop(key, None)
        except EvenkeelError as error:
            again = self._failed(key)
            log.warning("%s/%s is tried again in %g s: %s", *key, again, error)
        except Exception:
            again = self._failed(key)
            log.exception("%s/%s failed, and is tried again in %g s", *key, again)
        return again

    async def _next(self) -> Key:
        while True:
            for key in self._waiting:
                if key not in self._busy:
                    del self._waiting[key]
                    self._busy.add(key)
                    return key
            self._news.clear()
            await self._news.wait()

    def _failed(self, key: Key) -> float:
        self.failures += 1
        wait = self._retry.get(key, _FIRST_RETRY)
        self._retry[key] = min(2 * wait, _LONGEST_RETRY)
        return wait

    def _later(self, key: Key, seconds: float | None) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        if seconds is not None:
            self._timers[key] = self._clock.call_at(self._clock.now() + seconds, lambda: self._due(key))

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

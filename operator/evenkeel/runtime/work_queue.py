"""A level-triggered work queue: an event says which key to reconcile, never what happened to it.

A key that is added many times before its turn is reconciled once. While a key is being reconciled no other worker
takes it; if it is added in that time, it is reconciled once more afterwards. A key may be due later, and may have to
wait a minimum interval between two reconciliations.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.clock import Clock, SystemClock, Timer
from evenkeel.runtime.log_context import log_context

__all__ = ["Reconcile", "WorkQueue", "Workers"]

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
Reconcile = Callable[[K], Awaitable[float | None]]
"""Reconciles a key; returns in how many seconds to do so again without an event, or None."""

_FIRST_RETRY: Final = 1.0
_LONGEST_RETRY: Final = 60.0
_NEVER: Final = float("inf")


class WorkQueue(Generic[K]):
    """Keys and when each is due."""

    def __init__(self, clock: Clock | None = None, *, min_interval: float = 0.0, exclusive: K | None = None) -> None:
        """Two reconciliations of a key begin at least `min_interval` seconds apart.

        While the `exclusive` key is due or running, no other key begins.
        """
        self._clock = clock or SystemClock()
        self._min_interval = min_interval
        self._exclusive = exclusive
        self._ready: dict[K, float] = {}
        """Keys that are due, in order, with the time since when."""
        self._delayed: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        """The delayed keys by time; an entry whose time differs from that in `_delayed` is stale."""
        self._order = itertools.count()
        self._timer: Timer | None = None
        self._timer_at = _NEVER
        self._running: set[K] = set()
        self._started: dict[K, float] = {}
        self._wake = asyncio.Event()

    def add(self, key: K, *, after: float = 0.0) -> None:
        """Enqueue a key to be due in so many seconds, or earlier if it already is."""
        if key in self._ready:
            return
        now = self._clock.now()
        due = now + after
        if self._min_interval:
            due = max(due, self._started.get(key, -_NEVER) + self._min_interval)
        if due <= now:
            self._delayed.pop(key, None)
            self._ready[key] = now
            self._wake.set()
        elif due < self._delayed.get(key, _NEVER):
            self._delayed[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._set_timer()

    def add_all(self, keys: Iterable[K]) -> None:
        """Enqueue keys to be due now."""
        for key in keys:
            self.add(key)

    def __len__(self) -> int:
        """Return how many keys are due or running."""
        return len(self._ready) + len(self._running - self._ready.keys())

    @property
    def idle(self) -> bool:
        """Whether nothing is due and nothing is running."""
        return not self._ready and not self._running

    def oldest(self) -> float:
        """Return for how many seconds the longest-waiting key has been due."""
        return self._clock.now() - min(self._ready.values(), default=self._clock.now())

    async def take(self) -> K:
        """Wait for the next key that is due; the caller calls `done` when it has been reconciled."""
        while (key := self._next()) is None:
            self._wake.clear()
            await self._wake.wait()
        del self._ready[key]
        self._running.add(key)
        if self._min_interval:
            now = self._clock.now()
            self._started = {other: at for other, at in self._started.items() if at > now - self._min_interval}
            self._started[key] = now
        return key

    def done(self, key: K) -> None:
        """Let the key be taken again."""
        self._running.discard(key)
        self._wake.set()

    async def take_all(self) -> Iterable[K]:
        """Wait until a key is due, and take all that are, without marking them as running."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        taken, self._ready = self._ready, {}
        return taken

    def _next(self) -> K | None:
        if self._exclusive is not None:
            if self._exclusive in self._running:
                return None
            if self._exclusive in self._ready:
                return self._exclusive
        return next((key for key in self._ready if key not in self._running), None)

    def _set_timer(self) -> None:
        """Have the timer fire when the first delayed key is due."""
        while self._heap and self._delayed.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        due = self._heap[0][0] if self._heap else _NEVER
        if due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._clock.call_at(due, self._on_timer) if due < _NEVER else None

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, _NEVER
        now = self._clock.now()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._delayed.get(key) == due:
                del self._delayed[key]
                self._ready.setdefault(key, now)
                self._wake.set()
        self._set_timer()


class Workers(Generic[K]):
    """A few tasks that reconcile the keys of a queue; a key that fails is retried with exponential backoff."""

    def __init__(
        self,
        queue: WorkQueue[K],
        reconcile: Reconcile[K],
        *,
        subject: str = "",
        count: int = 4,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        """`subject` is the field under which log lines name the key; without one, `reconcile` names it.

        `fatal` errors end `run` instead of being retried.
        """
        self._fatal = fatal
        self._queue = queue
        self._reconcile = reconcile
        self._subject = subject
        self._count = count
        self._retry: dict[K, float] = {}
        self.failures = 0
        """Reconciliations that have failed so far."""

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._count):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            name = "/".join(key) if isinstance(key, tuple) else str(key)
            try:
                with log_context(**({self._subject: name} if self._subject else {})):
                    again = await self._try(key, name)
            finally:
                self._queue.done(key)
            if again is not None:
                self._queue.add(key, after=again)

    async def _try(self, key: K, name: str) -> float | None:
        try:
            again = await self._reconcile(key)
            self._retry.pop(key, None)
        except self._fatal:
            raise
        except EvenkeelError as error:
            again = self._failed(key)
            log.warning("reconciling %s failed; retrying in %g s: %s", name, again, error)
        except Exception:
            again = self._failed(key)
            log.exception("reconciling %s failed unexpectedly; retrying in %g s", name, again)
        return again

    def _failed(self, key: K) -> float:
        self.failures += 1
        wait = self._retry.get(key, _FIRST_RETRY)
        self._retry[key] = min(2 * wait, _LONGEST_RETRY)
        return wait

"""Rate limits for snapshot traffic.

One budget serves a whole store. Every snapshot that the store sends or receives takes bytes from it and waits while it
is empty. Raft messages are charged to the budget too, but never wait, so snapshots slow down while replication is
busy. A small share is reserved for snapshots; without it a busy store would never finish copying a new replica.

A table may have its own limit. Its snapshots take bytes from the table's budget first, then from the store's.

Both parts are token buckets. A bucket may be overdrawn by one request, so that a request larger than the bucket passes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

from evenkeel.runtime.clock import Clock, Timer

__all__ = ["ByteBudget", "TableBudgets"]

_BURST_SECONDS: Final = 0.1
_DEBT_SECONDS: Final = 1.0
_LEAST_SHARE: Final = 0.1


class _Bucket:
    """Token bucket that holds at most a tenth of a second's worth."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.level = rate * _BURST_SECONDS
        self._filled_at = now

    def fill(self, now: float) -> None:
        self.level = min(self.rate * _BURST_SECONDS, self.level + self.rate * (now - self._filled_at))
        self._filled_at = now

    def ready_in(self) -> float:
        """Return the seconds until the level is positive."""
        return max(0.0, -self.level / self.rate)


class ByteBudget:
    """A rate limit in bytes per second; None means no limit."""

    def __init__(self, rate: float | None, *, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._timer: Timer | None = None
        self._shared: _Bucket | None = None
        self._reserve: _Bucket | None = None
        self.set_rate(rate)

    def set_rate(self, rate: float | None) -> None:
        """Change the limit, also for requests that already wait."""
        self.rate = rate
        now = self._clock.now()
        self._shared = _Bucket(rate * (1 - _LEAST_SHARE), now) if rate else None
        self._reserve = _Bucket(rate * _LEAST_SHARE, now) if rate else None
        self._serve()

    def charge(self, size: int) -> None:
        """Charge raft traffic to the budget without waiting."""
        if self._shared is not None:
            self._shared.fill(self._clock.now())
            self._shared.level = max(self._shared.level - size, -_DEBT_SECONDS * self._shared.rate)

    async def take(self, size: int) -> None:
        """Wait for `size` bytes; requests are served in order."""
        if self._shared is None:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._serve()
        await turn

    def _serve(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                wait = self._try(size)
                if wait > 0:
                    self._timer = self._clock.call_at(self._clock.now() + wait, self._serve)
                    return
                turn.set_result(None)
            self._waiting.popleft()

    def _try(self, size: int) -> float:
        """Take `size` bytes and return 0, or return the seconds until that is possible."""
        if self._shared is None or self._reserve is None:
            return 0.0
        now = self._clock.now()
        for bucket in (self._shared, self._reserve):
            bucket.fill(now)
            if bucket.level > 0:
                bucket.level -= size
                return 0.0
        # Wait slightly longer than computed: rounding must not wake us too early again and again.
        return min(self._shared.ready_in(), self._reserve.ready_in()) + 1e-6


class TableBudgets:
    """Rate limits per table, below the limit of the store."""

    def __init__(self, store: ByteBudget, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._own: dict[str, ByteBudget] = {}

    @property
    def limits(self) -> dict[str, float]:
        """Return the limit of each table that has one."""
        return {table: own.rate for table, own in self._own.items() if own.rate is not None}

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """Replace all limits; requests that already wait continue under the new ones."""
        for table in self._own.keys() - limits.keys():
            self._own.pop(table).set_rate(None)
        for table, rate in limits.items():
            if table not in self._own:
                self._own[table] = ByteBudget(rate, clock=self._clock)
            elif self._own[table].rate != rate:
                self._own[table].set_rate(rate)

    async def take(self, table: str, size: int) -> None:
        """Wait for the table's budget, then for the store's."""
        own = self._own.get(table)
        if own is not None:
            await own.take(size)
        await self._store.take(size)

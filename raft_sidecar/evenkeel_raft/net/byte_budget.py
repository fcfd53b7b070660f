"""Bytes per second for everything that is not urgent.

One budget serves a whole store: every snapshot it sends or receives takes from it, and waits where there is nothing
left. Raft's own messages take from it too, but never wait: so snapshots slow down when there is much to replicate, and
speed up when there is not. A small share is theirs alone, or a busy store would never fill a new replica.

A table may have a limit of its own: what is copied of it takes from that one first, then from the store's.

Both parts are token buckets that may be overdrawn by one helping, or one larger than the bucket would never pass.
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
    """Tokens that come at a steady rate, up to a tenth of a second's worth."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.level = rate * _BURST_SECONDS
        self._filled_at = now

    def fill(self, now: float) -> None:
        self.level = min(self.rate * _BURST_SECONDS, self.level + self.rate * (now - self._filled_at))
        self._filled_at = now

    def ready_in(self) -> float:
        """Seconds until there is something in it."""
        return max(0.0, -self.level / self.rate)


class ByteBudget:
    """`rate` in bytes per second; None is no limit."""

    def __init__(self, rate: float | None, *, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._timer: Timer | None = None
        self._shared: _Bucket | None = None
        self._reserve: _Bucket | None = None
        self.set_rate(rate)

    def set_rate(self, rate: float | None) -> None:
        """Change the limit for everything from now on."""
        self.rate = rate
        now = self._clock.now()
        self._shared = _Bucket(rate * (1 - _LEAST_SHARE), now) if rate else None
        self._reserve = _Bucket(rate * _LEAST_SHARE, now) if rate else None
        self._serve()

    def urgent(self, size: int) -> None:
        """Take without waiting; the rest of the store pays for it."""
        if self._shared is not None:
            self._shared.fill(self._clock.now())
            self._shared.level = max(self._shared.level - size, -_DEBT_SECONDS * self._shared.rate)

    async def take(self, size: int) -> None:
        """Wait for one's turn, in the order of asking."""
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
        """Take if there is anything to take from; else return the seconds until there is."""
        if self._shared is None or self._reserve is None:
            return 0.0
        now = self._clock.now()
        for bucket in (self._shared, self._reserve):
            bucket.fill(now)
            if bucket.level > 0:
                bucket.level -= size
                return 0.0
        # A little more than due, or rounding could wake us a moment too early, again and again.
        return min(self._shared.ready_in(), self._reserve.ready_in()) + 1e-6


class TableBudgets:
    """The limits of tables, each for one store, below the store's."""

    def __init__(self, store: ByteBudget, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._own: dict[str, ByteBudget] = {}

    @property
    def limits(self) -> dict[str, float]:
        """By table."""
        return {table: own.rate for table, own in self._own.items() if own.rate is not None}

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """Know these limits and no others; whoever waits for one goes on under the new one."""
        for table in self._own.keys() - limits.keys():
            self._own.pop(table).set_rate(None)
        for table, rate in limits.items():
            if table not in self._own:
                self._own[table] = ByteBudget(rate, clock=self._clock)
            elif self._own[table].rate != rate:
                self._own[table].set_rate(rate)

    async def take(self, table: str, size: int) -> None:
        """Wait for one's turn with the table, then with the store."""
        own = self._own.get(table)
        if own is not None:
            await own.take(size)
        await self._store.take(size)

"""Bounds the number of concurrent snapshots. Lowering the bound does not interrupt running ones."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["SnapshotSlots"]


class SnapshotSlots:
    """Async context manager that waits for a free slot, first come, first served."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Number of slots."""
        return self._limit

    def set_limit(self, limit: int) -> None:
        """Change the number of slots."""
        self._limit = limit
        self._serve()

    async def __aenter__(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the slot was assigned just before the cancellation
                self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        self._taken -= 1
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._taken < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)

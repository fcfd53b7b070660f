"""So many at a time, where that number can change: what is under way when it falls is finished."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["SnapshotSlots"]


class SnapshotSlots:
    """An async context manager that waits for a free slot; slots are given in the order of asking."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """How many may be taken at the same time."""
        return self._limit

    def set_limit(self, limit: int) -> None:
        """Change the number from now on."""
        self._limit = limit
        self._serve()

    async def __aenter__(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the slot was given just before the wait was cancelled
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

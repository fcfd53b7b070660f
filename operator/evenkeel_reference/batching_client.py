"""Small writes that share entries: what is wanted while others are on their way goes together.

An entry costs about the same on its way through sockets, log and raft whatever it holds, so a client with many small
writes gathers them. Nobody waits for that: while fewer than `at_once` entries are on their way, the next one leaves
with whatever this turn of the loop has brought.
"""

from __future__ import annotations

import asyncio
from functools import partial

from evenkeel.errors import DisconnectedError
from evenkeel.wire.socket_messages import Unknown
from evenkeel_reference.reference_client import ReferenceClient, WriteOutcome
from evenkeel_reference.reference_entries import Batch

__all__ = ["BatchingClient"]

_Waiting = list[asyncio.Future[WriteOutcome]]


class BatchingClient:
    """Writes to one group; each has the outcome of the entry that it was a part of.

    `writer` names this client in tokens, so it has to be nobody else's, now or ever.
    """

    def __init__(self, client: ReferenceClient, group: int, *, writer: str, at_once: int = 2, most: int = 1024) -> None:
        self._client = client
        self._group = group
        self._writer = writer
        self._sequence = 0
        self._at_once = at_once
        self._most = most
        self._changes: list[tuple[bytes, bytes | None]] = []
        self._waiting: _Waiting = []
        self._under_way = 0
        self._scheduled = False
        self._loop = asyncio.get_running_loop()

    def put(self, key: bytes, value: bytes | None) -> asyncio.Future[WriteOutcome]:
        """Set a key, or remove it: None."""
        future: asyncio.Future[WriteOutcome] = self._loop.create_future()
        self._changes.append((key, value))
        self._waiting.append(future)
        self._schedule()
        return future

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        while self._changes and self._under_way < self._at_once:
            changes, self._changes = self._changes[: self._most], self._changes[self._most :]
            waiting, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            self._sequence += 1
            try:
                written = self._client.write(self._group, Batch(self._writer, self._sequence, changes))
            except DisconnectedError:
                _settle(waiting, Unknown())
                continue
            self._under_way += 1
            written.add_done_callback(partial(self._done, waiting))

    def _done(self, waiting: _Waiting, written: asyncio.Future[WriteOutcome]) -> None:
        self._under_way -= 1
        _settle(waiting, Unknown() if written.cancelled() else written.result())
        self._schedule()


def _settle(waiting: _Waiting, outcome: WriteOutcome) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(outcome)

"""A client that puts small writes into shared entries.

An entry costs about the same in sockets, log and raft regardless of its size, so a client with many small writes should
batch them. Batching adds no delay: while fewer than `max_in_flight` entries are in flight, the next one leaves with the
writes of the current iteration of the event loop.
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
    """Writes to one group; each write has the outcome of its entry.

    `writer` names this client in write tokens, so no other client may ever use it.
    """

    def __init__(
        self, client: ReferenceClient, group: int, *, writer: str, max_in_flight: int = 2, max_batch: int = 1024
    ) -> None:
        self._client = client
        self._group = group
        self._writer = writer
        self._sequence = 0
        self._max_in_flight = max_in_flight
        self._max_batch = max_batch
        self._changes: list[tuple[bytes, bytes | None]] = []
        self._waiting: _Waiting = []
        self._in_flight = 0
        self._scheduled = False
        self._loop = asyncio.get_running_loop()

    def put(self, key: bytes, value: bytes | None) -> asyncio.Future[WriteOutcome]:
        """Set a key, or remove it (None)."""
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
        while self._changes and self._in_flight < self._max_in_flight:
            changes, self._changes = self._changes[: self._max_batch], self._changes[self._max_batch :]
            waiting, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
            self._sequence += 1
            try:
                written = self._client.write(self._group, Batch(self._writer, self._sequence, changes))
            except DisconnectedError:
                _settle(waiting, Unknown())
                continue
            self._in_flight += 1
            written.add_done_callback(partial(self._done, waiting))

    def _done(self, waiting: _Waiting, written: asyncio.Future[WriteOutcome]) -> None:
        self._in_flight -= 1
        _settle(waiting, Unknown() if written.cancelled() else written.result())
        self._schedule()


def _settle(waiting: _Waiting, outcome: WriteOutcome) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(outcome)

"""A client of the reference state machine for tests and benchmarks: one connection, pipelined requests."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from evenkeel.errors import DisconnectedError
from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.framing import Drops
from evenkeel.wire.pending_calls import PendingCalls
from evenkeel.wire.socket_messages import Busy, NotLeader, TooLarge, Unavailable, Unknown
from evenkeel_reference.reference_entries import Barrier, Conditional, Delete, Entry, Upsert
from evenkeel_reference.reference_server import (
    CLIENT_CODEC,
    ClientFrame,
    ClientMessage,
    Get,
    Held,
    ServerMessage,
    Status,
    StatusIs,
    Write,
    Written,
)

__all__ = ["ReferenceClient", "WriteOutcome"]

WriteOutcome = Written | NotLeader | Unknown | Busy | TooLarge
_WRITE_ANSWERS = (Written, NotLeader, Unknown, Busy, TooLarge)


class ReferenceClient:
    """One connection to a server; a request is sent at once, and its future holds the answer.

    When the connection is lost, pending writes are `Unknown` and pending reads `Unavailable`.
    """

    def __init__(self) -> None:
        self._calls: PendingCalls[ServerMessage] = PendingCalls()
        self._connection: FrameConnection | None = None

    @classmethod
    async def connect(cls, host: str, port: int) -> ReferenceClient:
        """Connect; `OSError` if the server is unreachable."""
        client = cls()
        loop = asyncio.get_running_loop()
        _, client._connection = await loop.create_connection(lambda: FrameConnection(client, drops=Drops()), host, port)
        return client

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()

    def upsert(
        self, group: int, key: bytes, value: bytes, *, writer: str = "", sequence: int = 0
    ) -> asyncio.Future[WriteOutcome]:
        """Set a key."""
        return self.write(group, Upsert(writer, sequence, key, value))

    def delete(self, group: int, key: bytes, *, writer: str = "", sequence: int = 0) -> asyncio.Future[WriteOutcome]:
        """Remove a key."""
        return self.write(group, Delete(writer, sequence, key))

    def compare_and_set(
        self, group: int, key: bytes, *, expected: bytes | None, value: bytes | None, writer: str, sequence: int
    ) -> asyncio.Future[WriteOutcome]:
        """Set a key if it has the expected value."""
        return self.write(group, Conditional(writer, sequence, key, expected, value))

    def barrier(self, group: int) -> asyncio.Future[WriteOutcome]:
        """Record a hash of the state on every replica."""
        return self.write(group, Barrier())

    def write(self, group: int, entry: Entry) -> asyncio.Future[WriteOutcome]:
        """Log an entry."""
        return self._request(group, Write(entry), _WRITE_ANSWERS, Unknown())

    def get(self, group: int, key: bytes, *, stale: bool = False) -> asyncio.Future[Held | Unavailable]:
        """Read a key."""
        return self._request(group, Get(key, stale), (Held, Unavailable), Unavailable())

    def status(self, group: int) -> asyncio.Future[StatusIs | Unavailable]:
        """Request the status of a group."""
        return self._request(group, Status(), (StatusIs,), Unavailable())

    def _request(
        self, group: int, body: ClientMessage, accepts: tuple[type[ServerMessage], ...], if_lost: ServerMessage
    ) -> asyncio.Future[Any]:
        if self._connection is None or self._connection.closing:
            raise DisconnectedError("the client is not connected; create a new one")
        future: asyncio.Future[ServerMessage] = asyncio.get_running_loop().create_future()
        number = self._calls.begin(group, 0, accepts=accepts, settle=partial(_settle, future, if_lost))
        self._connection.send(CLIENT_CODEC.encode(ClientFrame(number, group, body)))
        return future

    def made(self, connection: FrameConnection) -> None:
        """The connection is established."""

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Settle the request that an answer belongs to."""
        answer = CLIENT_CODEC.decode(payload)
        self._calls.answered(answer.id, answer.group, 0, answer.body)

    def lost(self, connection: FrameConnection) -> None:
        """Settle all pending requests."""
        self._calls.abandon()


def _settle(future: asyncio.Future[ServerMessage], if_lost: ServerMessage, body: ServerMessage | None) -> None:
    if not future.done():
        future.set_result(if_lost if body is None else body)

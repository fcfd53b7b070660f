"""A client of the reference state machine, as tests and benches need one: one connection, pipelined requests."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from evenkeel.errors import DisconnectedError
from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.framing import Drops
from evenkeel.wire.pending_calls import Calls
from evenkeel.wire.socket_messages import Busy, NotLeader, TooLarge, Unavailable, Unknown
from evenkeel_reference.reference_entries import Barrier, Conditional, Delete, Entry, Upsert
from evenkeel_reference.reference_server import (
    CLIENT_CODEC,
    ClientSays,
    FrontRequest,
    FrontSays,
    Get,
    Held,
    Status,
    StatusIs,
    Write,
    Written,
)

__all__ = ["ReferenceClient", "WriteOutcome"]

WriteOutcome = Written | NotLeader | Unknown | Busy | TooLarge
_WRITE_ANSWERS = (Written, NotLeader, Unknown, Busy, TooLarge)


class ReferenceClient:
    """One connection to a store's front; a request is sent at once, and its future holds the answer.

    When the connection breaks, a write's outcome is `Unknown` and a read is `Unavailable`.
    """

    def __init__(self) -> None:
        self._calls: Calls[FrontSays] = Calls()
        self._connection: FrameConnection | None = None

    @classmethod
    async def connect(cls, host: str, port: int) -> ReferenceClient:
        """Connect; `OSError` where nobody listens."""
        client = cls()
        loop = asyncio.get_running_loop()
        _, client._connection = await loop.create_connection(lambda: FrameConnection(client, drops=Drops()), host, port)
        return client

    async def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.ended()

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
        """Set a key if it holds what is expected."""
        return self.write(group, Conditional(writer, sequence, key, expected, value))

    def barrier(self, group: int) -> asyncio.Future[WriteOutcome]:
        """Have every replica take its hash."""
        return self.write(group, Barrier())

    def write(self, group: int, entry: Entry) -> asyncio.Future[WriteOutcome]:
        """Log an entry."""
        return self._ask(group, Write(entry), _WRITE_ANSWERS, Unknown())

    def get(self, group: int, key: bytes, *, stale: bool = False) -> asyncio.Future[Held | Unavailable]:
        """Read a key."""
        return self._ask(group, Get(key, stale), (Held, Unavailable), Unavailable())

    def status(self, group: int) -> asyncio.Future[StatusIs | Unavailable]:
        """Ask about a group."""
        return self._ask(group, Status(), (StatusIs,), Unavailable())

    def _ask(
        self, group: int, body: ClientSays, accepts: tuple[type[FrontSays], ...], lost: FrontSays
    ) -> asyncio.Future[Any]:
        if self._connection is None or self._connection.closing:
            raise DisconnectedError("this client is not connected: connect anew")
        future: asyncio.Future[FrontSays] = asyncio.get_running_loop().create_future()
        number = self._calls.begin(group, 0, accepts=accepts, settle=partial(_settle, future, lost))
        self._connection.send(CLIENT_CODEC.encode(FrontRequest(number, group, body)))
        return future

    def made(self, connection: FrameConnection) -> None:
        """The connection is up."""

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Hand an answer to whoever waits for it."""
        answer = CLIENT_CODEC.decode(payload)
        self._calls.answered(answer.id, answer.group, 0, answer.body)

    def lost(self, connection: FrameConnection) -> None:
        """Nobody answers any more."""
        self._calls.abandon()


def _settle(future: asyncio.Future[FrontSays], lost: FrontSays, body: FrontSays | None) -> None:
    if not future.done():
        future.set_result(lost if body is None else body)

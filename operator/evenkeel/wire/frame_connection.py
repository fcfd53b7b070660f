"""Frames over an asyncio transport.

Frames sent within one iteration of the event loop leave in one write. A frame that cannot be decoded is counted and
closes its connection; other connections are not affected.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, Protocol, cast

from evenkeel.errors import DisconnectedError, FrameError
from evenkeel.wire.framing import HEADER, MAX_FRAME_BYTES, Drops, FrameReader, Reason
from evenkeel.wire.payload_pieces import Bytes

__all__ = ["FrameConnection", "Owner"]

_CLOSE_TIMEOUT: Final = 1.0


class Owner(Protocol):
    """Handles the events of a connection. A `FrameError` raised by `received` drops the connection."""

    def made(self, connection: FrameConnection, /) -> None:
        """The connection is established."""
        ...

    def received(self, connection: FrameConnection, payload: memoryview, /) -> None:
        """A frame arrived; a payload of up to `SMALL_FRAME_BYTES` is valid during the call only."""
        ...

    def lost(self, connection: FrameConnection, /) -> None:
        """The connection is closed, for any reason; called once, and only after `made`."""
        ...


class FrameConnection(asyncio.BufferedProtocol):
    """One connection, from `made` to `lost`."""

    def __init__(self, owner: Owner, *, drops: Drops, limit: int = MAX_FRAME_BYTES) -> None:
        """`limit` applies to received frames, until `set_owner` raises it."""
        self._owner = owner
        self._drops = drops
        self._reader = FrameReader(limit=limit)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Bytes] = []
        self._drained: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing = False
        self.writable = True
        self.dropped = ""
        """Why it was dropped; empty if it ended normally."""
        self.bytes_received = 0
        self.idle = True
        """Whether nothing was sent since a caller set this."""
        self.on_writable: Callable[[], None] | None = None
        """Called when the send buffer has room again after it was full."""

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the event to the owner."""
        self._transport = cast("asyncio.Transport", transport)
        self._owner.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Pass complete frames to the owner."""
        self.bytes_received += nbytes
        if self._closing:
            return
        try:
            for payload in self._reader.advance(nbytes):
                self._owner.received(self, payload)
                if self._closing:
                    return
        except FrameError as error:
            self.drop(error.reason, error.detail)

    def connection_lost(self, error: Exception | None) -> None:
        """Pass the event to the owner, once."""
        if self._ended.done():
            return
        if not self._closing:
            if isinstance(error, ssl.SSLError):
                self._count_drop(Reason.TLS, str(error))
            elif self._reader.mid_frame:
                self._count_drop(Reason.TRUNCATED, "the stream ended inside a frame")
        self._closing = True
        self._unsent.clear()
        self._release_waiters()
        self._owner.lost(self)
        self._ended.set_result(None)

    def pause_writing(self) -> None:
        """The send buffer is full."""
        self.writable = False

    def resume_writing(self) -> None:
        """The send buffer has room again."""
        self.writable = True
        self._release_waiters()
        if self.on_writable is not None:
            self.on_writable()

    # Called by the owner

    def set_owner(self, owner: Owner) -> None:
        """Pass events to another owner, and accept frames of any size: the handshake has succeeded."""
        self._owner = owner
        self._reader.set_limit(MAX_FRAME_BYTES)

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection."""
        assert self._transport is not None, "not connected yet"
        return self._transport

    @property
    def closing(self) -> bool:
        """Whether sending and receiving have ended."""
        return self._closing

    def send(self, *payload: Bytes) -> None:
        """Send a frame at the end of this iteration of the event loop; its payload may be in several pieces.

        Does nothing if the connection is closing.
        """
        if self._closing:
            return
        if not self._unsent:
            self._loop.call_soon(self.flush)
            self.idle = False
        self._unsent += (HEADER.pack(sum(map(len, payload))), *payload)

    def write(self, *payload: Bytes) -> None:
        """Send all unsent frames and this one now; its payload may be in several pieces."""
        if self._closing:
            return
        self.idle = False
        self.transport.writelines((*self._unsent, HEADER.pack(sum(map(len, payload))), *payload))
        self._unsent = []

    def flush(self) -> None:
        """Send all unsent frames now."""
        if self._unsent and not self._closing and not self._closed_silently():
            self.transport.writelines(self._unsent)
            self._unsent = []

    async def drain(self) -> None:
        """Wait until the send buffer has room."""
        self.flush()
        if not self.writable and not self._closing:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        if self._closing:
            raise DisconnectedError("the connection was closed during a write")

    def close(self) -> None:
        """Send all unsent frames, then close."""
        if not self._closing and not self._closed_silently():
            self.flush()
            self._closing = True
            self.transport.close()

    def dismiss(self, reason: str, detail: str = "") -> None:
        """Count the reason, send all unsent frames, then close."""
        if not self._closing:
            self._count_drop(reason, detail)
            self.close()

    def drop(self, reason: str, detail: str = "") -> None:
        """Count the reason and close at once."""
        if not self._closing:
            self._count_drop(reason, detail)
            self.abort()

    def abort(self) -> None:
        """Close at once and discard unsent frames."""
        if not self._closed_silently():
            self._closing = True
            self.transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed, after `close`; abort it if the other end reads nothing for a second."""
        await asyncio.wait([self._ended], timeout=_CLOSE_TIMEOUT)
        if not self._ended.done():
            self.abort()
            await asyncio.shield(self._ended)

    def _closed_silently(self) -> bool:
        """Whether the transport was closed without a call of `connection_lost`.

        uvloop does so when dialling or accepting is cancelled. Its `is_closing` may still return False.
        """
        if self._closing or not (self.transport.is_closing() or _is_dead(self.transport)):
            return False
        self._closing = True
        self._loop.call_soon(self.connection_lost, None)
        return True

    def _count_drop(self, reason: str, detail: str) -> None:
        self._drops[reason] += 1
        self.dropped = f"{reason}: {detail}" if detail else reason

    def _release_waiters(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None


def _is_dead(transport: asyncio.Transport) -> bool:
    try:
        transport.write(b"")  # a no-op unless the transport is closed
    except RuntimeError:
        return True
    return False

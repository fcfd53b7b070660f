"""Frames over an asyncio transport.

What is sent within one turn of the event loop leaves in one write. What cannot be understood is counted and costs the
connection it came by; nobody else notices.
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

_LAST_SECONDS: Final = 1.0


class Owner(Protocol):
    """Whoever a connection tells what happens to it. `FrameError` from `received` drops the connection."""

    def made(self, connection: FrameConnection, /) -> None:
        """It is up."""
        ...

    def received(self, connection: FrameConnection, payload: memoryview, /) -> None:
        """A frame arrived; a payload of up to `SMALL_FRAME_BYTES` is valid during the call only."""
        ...

    def lost(self, connection: FrameConnection, /) -> None:
        """It is gone, for whatever reason; said once, and only after `made`."""
        ...


class FrameConnection(asyncio.BufferedProtocol):
    """One connection, from `made` to `lost`."""

    def __init__(self, owner: Owner, *, drops: Drops, limit: int = MAX_FRAME_BYTES) -> None:
        """`limit` is for frames received; see `hand_over`."""
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
        """Why it was dropped; empty where it simply ended."""
        self.bytes_received = 0
        self.idle = True
        """Whether nothing was sent since somebody set this."""
        self.on_writable: Callable[[], None] | None = None
        """Called when the other end keeps up again after it did not."""

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is up."""
        self._transport = cast("asyncio.Transport", transport)
        self._owner.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where bytes are to be put."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on the frames that are complete."""
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
        """The transport is gone."""
        if self._ended.done():
            return
        if not self._closing:
            if isinstance(error, ssl.SSLError):
                self._note(Reason.TLS, str(error))
            elif self._reader.inside:
                self._note(Reason.TRUNCATED, "the stream ended inside a frame")
        self._closing = True
        self._unsent.clear()
        self._release()
        self._owner.lost(self)
        self._ended.set_result(None)

    def pause_writing(self) -> None:
        """The other end does not read as fast as we write."""
        self.writable = False

    def resume_writing(self) -> None:
        """It caught up."""
        self.writable = True
        self._release()
        if self.on_writable is not None:
            self.on_writable()

    # What an owner does

    def hand_over(self, owner: Owner) -> None:
        """Let another owner go on, with frames of any size: the other end has proved who it is."""
        self._owner = owner
        self._reader.allow(MAX_FRAME_BYTES)

    @property
    def transport(self) -> asyncio.Transport:
        """What carries the bytes."""
        assert self._transport is not None, "not connected yet"
        return self._transport

    @property
    def closing(self) -> bool:
        """Whether nothing more will be sent or delivered."""
        return self._closing

    def send(self, *payload: Bytes) -> None:
        """Send a frame with what else is sent in this turn of the loop; its payload may come in pieces.

        Nothing happens once the connection closes.
        """
        if self._closing:
            return
        if not self._unsent:
            self._loop.call_soon(self.flush)
            self.idle = False
        self._unsent += (HEADER.pack(sum(map(len, payload))), *payload)

    def write(self, *payload: Bytes) -> None:
        """Send a frame at once, after what waits for the end of this turn; its payload may come in pieces."""
        if self._closing:
            return
        self.idle = False
        self.transport.writelines((*self._unsent, HEADER.pack(sum(map(len, payload))), *payload))
        self._unsent = []

    def flush(self) -> None:
        """Send what waits for the end of this turn."""
        if self._unsent and not self._closing and not self._gone():
            self.transport.writelines(self._unsent)
            self._unsent = []

    async def drain(self) -> None:
        """Wait while the other end does not keep up."""
        self.flush()
        if not self.writable and not self._closing:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        if self._closing:
            raise DisconnectedError("the connection was closed while it was being written to")

    def close(self) -> None:
        """Send what is under way, then close."""
        if not self._closing and not self._gone():
            self.flush()
            self._closing = True
            self.transport.close()

    def dismiss(self, reason: str, detail: str = "") -> None:
        """Close after a last word, counting why."""
        if not self._closing:
            self._note(reason, detail)
            self.close()

    def drop(self, reason: str, detail: str = "") -> None:
        """Give the connection up at once, counting why."""
        if not self._closing:
            self._note(reason, detail)
            self.abort()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        if not self._gone():
            self._closing = True
            self.transport.abort()

    async def ended(self) -> None:
        """Wait until it is gone, after `close`; an end that does not read what we still have to say gets a second."""
        await asyncio.wait([self._ended], timeout=_LAST_SECONDS)
        if not self._ended.done():
            self.abort()
            await asyncio.shield(self._ended)

    def _gone(self) -> bool:
        """Whether the transport was closed behind our back.

        uvloop does so when dialling or accepting is called off, in silence: it does not even say that it is closing.
        """
        if self._closing or not (self.transport.is_closing() or _is_dead(self.transport)):
            return False
        self._closing = True
        self._loop.call_soon(self.connection_lost, None)
        return True

    def _note(self, reason: str, detail: str) -> None:
        self._drops[reason] += 1
        self.dropped = f"{reason}: {detail}" if detail else reason

    def _release(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None


def _is_dead(transport: asyncio.Transport) -> bool:
    try:
        transport.write(b"")  # which does nothing to one that is alive
    except RuntimeError:
        return True
    return False

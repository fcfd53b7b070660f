"""`FrameConnection` with transports that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.framing import Drops


class CountingOwner:
    """An owner that counts calls of `lost`."""

    def __init__(self) -> None:
        self.lost_times = 0

    def made(self, connection: FrameConnection) -> None:
        connection.send(b"hello")

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        raise AssertionError("nothing was sent")

    def lost(self, connection: FrameConnection) -> None:
        self.lost_times += 1


class ClosedTransport:
    """What uvloop leaves behind when dialling is cancelled: closed, but not always reported as closing."""

    def __init__(self, *, reports_closing: bool) -> None:
        self._reports_closing = reports_closing

    def is_closing(self) -> bool:
        return self._reports_closing

    def _refuse(self, *_: Any) -> None:
        raise RuntimeError("the handler is closed")

    def _ignore(self) -> None:
        pass

    write = writelines = _refuse
    close = abort = _ignore


class StuckTransport:
    """A transport whose other end does not read: `close` never completes, `abort` does."""

    def __init__(self) -> None:
        self.protocol: FrameConnection | None = None
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def writelines(self, data: Any) -> None:
        assert not self.closing

    write = writelines

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True
        assert self.protocol is not None
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


async def test_a_peer_that_does_not_read_is_aborted() -> None:
    """`wait_closed` aborts the connection after a second."""
    owner, transport = CountingOwner(), StuckTransport()
    connection = transport.protocol = FrameConnection(owner, drops=Drops())
    connection.connection_made(cast("asyncio.Transport", transport))
    connection.close()
    async with asyncio.timeout(10):
        await connection.wait_closed()
    assert owner.lost_times == 1


@pytest.mark.parametrize("reports_closing", [True, False])
@pytest.mark.parametrize("end", [FrameConnection.close, FrameConnection.abort, FrameConnection.flush])
async def test_a_transport_closed_silently(end: Callable[[FrameConnection], None], reports_closing: bool) -> None:
    """The owner is notified once, `wait_closed` returns, and nothing fails."""
    owner = CountingOwner()
    connection = FrameConnection(owner, drops=Drops())
    connection.connection_made(cast("asyncio.Transport", ClosedTransport(reports_closing=reports_closing)))
    end(connection)
    async with asyncio.timeout(10):
        await connection.wait_closed()
    connection.connection_lost(None)
    connection.close()
    assert connection.closing
    assert owner.lost_times == 1

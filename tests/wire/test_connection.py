"""A connection whose transport misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.framing import Drops


class Keeper:
    """An owner that counts."""

    def __init__(self) -> None:
        self.lost_times = 0

    def made(self, connection: FrameConnection) -> None:
        connection.send(b"hello")

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        raise AssertionError("nothing was sent")

    def lost(self, connection: FrameConnection) -> None:
        self.lost_times += 1


class ClosedTransport:
    """What uvloop leaves behind when dialling is called off: closed, of no use, and silent about it."""

    def __init__(self, *, says_so: bool) -> None:
        self._says_so = says_so

    def is_closing(self) -> bool:
        return self._says_so

    def _refuse(self, *_: Any) -> None:
        raise RuntimeError("the handler is closed")

    def _ignore(self) -> None:
        pass

    write = writelines = _refuse
    close = abort = _ignore


class StuckTransport:
    """One whose other end does not read: closing waits for ever, aborting does not."""

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


async def test_an_end_that_does_not_read_is_given_up() -> None:
    """Whoever waits for the end of a connection waits a second, then it is aborted."""
    keeper, transport = Keeper(), StuckTransport()
    connection = transport.protocol = FrameConnection(keeper, drops=Drops())
    connection.connection_made(cast("asyncio.Transport", transport))
    connection.close()
    async with asyncio.timeout(10):
        await connection.ended()
    assert keeper.lost_times == 1


@pytest.mark.parametrize("says_so", [True, False])
@pytest.mark.parametrize("end", [FrameConnection.close, FrameConnection.abort, FrameConnection.flush])
async def test_a_transport_closed_behind_its_back(end: Callable[[FrameConnection], None], says_so: bool) -> None:
    """Its owner is told once, whoever waits for the end is let go, and nothing fails."""
    keeper = Keeper()
    connection = FrameConnection(keeper, drops=Drops())
    connection.connection_made(cast("asyncio.Transport", ClosedTransport(says_so=says_so)))
    end(connection)
    async with asyncio.timeout(10):
        await connection.ended()
    connection.connection_lost(None)
    connection.close()
    assert connection.closing
    assert keeper.lost_times == 1

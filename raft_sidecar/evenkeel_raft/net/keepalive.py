"""Keeps a connection alive and drops it when the other end stops responding."""

from __future__ import annotations

from typing import Final

from evenkeel.runtime.clock import Clock, Timer
from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.framing import Reason
from evenkeel_raft.net.peer_frames import PEER_CODEC, Alive
from evenkeel_raft.shared.identity import LinkSettings

__all__ = ["Keepalive"]

_ALIVE: Final = PEER_CODEC.encode(Alive())


class Keepalive:
    """Checks one connection periodically.

    Received bytes count, not frames: a large frame that arrives slowly is progress. While reading is paused, silence
    proves nothing.
    """

    def __init__(self, connection: FrameConnection, *, clock: Clock, settings: LinkSettings) -> None:
        self._connection = connection
        self._clock = clock
        self._settings = settings
        self._seen = connection.bytes_received
        self.last_received_at = clock.now()
        self._timer: Timer = self._again()

    def cancel(self) -> None:
        """Stop checking."""
        self._timer.cancel()

    def _again(self) -> Timer:
        return self._clock.call_at(self._clock.now() + self._settings.alive_seconds, self._check)

    def _check(self) -> None:
        connection, now = self._connection, self._clock.now()
        if connection.bytes_received != self._seen or not connection.transport.is_reading():
            self._seen, self.last_received_at = connection.bytes_received, now
        elif now - self.last_received_at >= self._settings.silent_seconds:
            connection.drop(Reason.SILENT, f"received nothing for {now - self.last_received_at:.1f} s")
            return
        if connection.idle:
            connection.send(_ALIVE)
        connection.idle = True
        self._timer = self._again()

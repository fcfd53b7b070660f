"""The link to one peer: its current connection and the messages waiting for it.

Messages for a disconnected peer are dropped. Raft repeats what matters; the rest would be outdated after a reconnect.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from evenkeel.errors import EvenkeelError, FrameError
from evenkeel.runtime.backoff import Backoff, Rng
from evenkeel.runtime.clock import Timer
from evenkeel.wire.frame_connection import FrameConnection
from evenkeel.wire.framing import Reason
from evenkeel_raft.core.raft_messages import AnyMessage, Message
from evenkeel_raft.net.byte_budget import ByteBudget
from evenkeel_raft.net.clock_skew import SkewProbe
from evenkeel_raft.net.keepalive import Keepalive
from evenkeel_raft.net.outbox import Outbox
from evenkeel_raft.net.peer_endpoint import Endpoint, send_frame
from evenkeel_raft.net.peer_frames import PEER_CODEC, Alive, Batch, Inquiry, Verdict, batch_payload

__all__ = ["Link", "LinkHandler", "Undelivered"]

Undelivered = Counter[str]
"""Messages that were not sent, by reason: `unknown-peer`, `full`, `disconnected`, `too-long`."""


class LinkHandler(Protocol):
    """Receives what peers send over their links."""

    def received(self, store: str, messages: list[Message], /) -> None:
        """Handle raft messages."""
        ...

    def on_inquiry(self, store: str, inquiry: Inquiry, /) -> None:
        """Handle a membership inquiry of a peer; answer with `Peers.send_frame`, now or later."""
        ...

    def on_verdict(self, store: str, verdict: Verdict, /) -> None:
        """Handle the answer to an inquiry."""
        ...

    def connected(self, store: str, /) -> None:
        """Note that a peer has connected."""
        ...

    def disconnected(self, store: str, /) -> None:
        """Note that a peer has disconnected."""
        ...


class Link:
    """The link to one peer with one volume."""

    def __init__(
        self,
        store: str,
        *,
        volume: str,
        endpoint: Endpoint,
        handler: LinkHandler,
        budget: ByteBudget,
        undelivered: Undelivered,
        flush_soon: Callable[[Link], None],
    ) -> None:
        """`flush_soon` schedules a flush at the end of this turn of the event loop."""
        self.store = store
        self.volume = volume
        self.connection: FrameConnection | None = None
        self.keepalive: Keepalive | None = None
        self.probe: SkewProbe | None = None
        self._endpoint = endpoint
        self._handler = handler
        self._budget = budget
        self._undelivered = undelivered
        self._schedule_flush = flush_soon
        self._outbox = Outbox(limit=endpoint.settings.outbox_bytes)
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        self._notice_timer: Timer | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    # Connecting

    def keep_dialling(self, rng: Rng) -> None:
        """Connect, and reconnect whenever the connection is lost."""
        self._dialling = self._loop.create_task(self._dial(rng))

    def stop(self) -> None:
        """Disconnect permanently."""
        if self._dialling is not None:
            self._dialling.cancel()
        self._detach()

    async def stopped(self) -> None:
        """Wait until dialling has ended."""
        if self._dialling is not None:
            await asyncio.gather(self._dialling, return_exceptions=True)

    async def _dial(self, rng: Rng) -> None:
        settings, clock = self._endpoint.settings, self._endpoint.clock
        backoff = Backoff(clock=clock, rng=rng, first=settings.first_retry, longest=settings.last_retry)
        while True:
            self._lost.clear()
            try:
                await self._endpoint.dial(self.store, "raft", owner=self)
                backoff.reset()
                await self._lost.wait()
            except (EvenkeelError, OSError):
                pass  # `Endpoint.refusals` has the reason
            await backoff.wait()

    # Connection events

    def made(self, connection: FrameConnection) -> None:
        """Adopt a new connection; its maker knows that the previous one is dead."""
        if self.connection is not None:
            self.connection.drop(Reason.REPLACED, f"{self.store} opened a new connection")
            self._detach()
        self.connection = connection
        self.keepalive = Keepalive(connection, clock=self._endpoint.clock, settings=self._endpoint.settings)
        self.probe = SkewProbe(
            partial(send_frame, connection),
            clock=self._endpoint.clock,
            wall_clock=self._endpoint.wall_clock,
            seconds=self._endpoint.settings.skew_seconds,
        )
        connection.on_writable = self._flush_soon
        self._handler.connected(self.store)
        self._flush_soon()

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Dispatch a frame."""
        frame = PEER_CODEC.decode(payload)
        if isinstance(frame, Batch):
            self._budget.charge(len(payload))
            if connection is self.connection:
                self._handler.received(self.store, cast("list[Message]", frame.messages))
        elif connection is not self.connection:
            return
        elif isinstance(frame, Alive):
            if self.probe is not None:
                self.probe.on_frame(frame)
        elif isinstance(frame, Inquiry):
            self._handler.on_inquiry(self.store, frame)
        elif isinstance(frame, Verdict):
            self._handler.on_verdict(self.store, frame)
        else:
            raise FrameError(Reason.UNEXPECTED, f"unexpected {type(frame).__name__} on a raft connection")

    def lost(self, connection: FrameConnection) -> None:
        """Detach from a lost connection if it is the current one."""
        if connection is self.connection:
            self._detach()

    def _detach(self) -> None:
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if self.keepalive is not None:
            self.keepalive.cancel()
            self.keepalive = None
        if self.probe is not None:
            self.probe.cancel()
            self.probe = None
        connection.on_writable = None
        connection.abort()
        if self._notice_timer is not None:
            self._notice_timer.cancel()
            self._notice_timer = None
        if self._outbox:
            self._undelivered["disconnected"] += self._outbox.clear()
        self._lost.set()
        self._handler.disconnected(self.store)

    # Sending

    def send(self, message: Message) -> None:
        """Send a message at the end of this turn of the event loop, or drop it."""
        if self.connection is None:
            self._undelivered["disconnected"] += 1
        elif not self._outbox.add(message):
            self._undelivered["full"] += 1
        elif not self._flushing:
            if self._outbox.urgent:
                self._flush_soon()
            elif self._notice_timer is None:
                clock = self._endpoint.clock
                self._notice_timer = clock.call_at(
                    clock.now() + self._endpoint.settings.notice_seconds, self._flush_all
                )

    def send_frame(self, frame: Inquiry | Verdict) -> None:
        """Send a frame other than raft messages, or drop it if disconnected."""
        if self.connection is not None:
            send_frame(self.connection, frame)

    def _flush_soon(self) -> None:
        if self.connection is not None and not self._flushing:
            self._flushing = True
            self._schedule_flush(self)

    def flush(self) -> None:
        """Send all waiting messages if any is urgent."""
        self._flushing = False
        if self._outbox.urgent:
            self._flush_all()

    def _flush_all(self) -> None:
        if self._notice_timer is not None:
            self._notice_timer.cancel()
            self._notice_timer = None
        while self._outbox and self.connection is not None and self.connection.writable:
            messages = self._outbox.take(self._endpoint.settings.batch_bytes)
            try:
                payload = batch_payload(cast("list[AnyMessage]", messages))
            except FrameError:
                self._undelivered["too-long"] += len(messages)
                continue
            self._budget.charge(sum(map(len, payload)))
            self.connection.write(*payload)

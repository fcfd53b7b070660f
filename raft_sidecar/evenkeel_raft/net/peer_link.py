"""The link to one peer: a connection while there is one, and what waits for its turn on it.

Messages for a peer that is not connected are dropped: raft repeats what matters, and what it does not repeat would be
of the past when the peer is back.
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
from evenkeel_raft.net.peer_endpoint import Endpoint, say
from evenkeel_raft.net.peer_frames import PEER_CODEC, Alive, Batch, Inquiry, Verdict, batch_payload

__all__ = ["Link", "LinkHandler", "Undelivered"]

Undelivered = Counter[str]
"""Messages that were never sent, by why: `unknown-peer`, `full`, `disconnected`, `too-long`."""


class LinkHandler(Protocol):
    """What a sidecar does with what its peers say."""

    def received(self, store: str, messages: list[Message], /) -> None:
        """Messages arrived."""
        ...

    def asked(self, store: str, inquiry: Inquiry, /) -> None:
        """A peer wants to know whether a replica of its own is still a member; answer by `Peers.say`, now or later."""
        ...

    def judged(self, store: str, verdict: Verdict, /) -> None:
        """A peer answered an inquiry."""
        ...

    def connected(self, store: str, /) -> None:
        """A peer is there."""
        ...

    def disconnected(self, store: str, /) -> None:
        """A peer is gone."""
        ...


class Link:
    """One peer, with one volume."""

    def __init__(
        self,
        store: str,
        *,
        volume: str,
        endpoint: Endpoint,
        handler: LinkHandler,
        budget: ByteBudget,
        undelivered: Undelivered,
        soon: Callable[[Link], None],
    ) -> None:
        """`soon` has the link flushed at the end of this turn of the loop."""
        self.store = store
        self.volume = volume
        self.connection: FrameConnection | None = None
        self.keepalive: Keepalive | None = None
        self.probe: SkewProbe | None = None
        self._endpoint = endpoint
        self._handler = handler
        self._budget = budget
        self._undelivered = undelivered
        self._soon = soon
        self._outbox = Outbox(limit=endpoint.settings.outbox_bytes)
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        self._later: Timer | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    # Connecting

    def keep_dialling(self, rng: Rng) -> None:
        """Connect, and connect again when the connection is lost."""
        self._dialling = self._loop.create_task(self._dial(rng))

    def stop(self) -> None:
        """Hang up for good."""
        if self._dialling is not None:
            self._dialling.cancel()
        self._detach()

    async def stopped(self) -> None:
        """Wait until nothing is under way any more."""
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
                pass  # `Endpoint.refusals` says why
            await backoff.wait()

    # What happens to the connection

    def made(self, connection: FrameConnection) -> None:
        """A connection is up; whoever made it knows that the one before is dead."""
        if self.connection is not None:
            self.connection.drop(Reason.REPLACED, f"{self.store} connected anew")
            self._detach()
        self.connection = connection
        self.keepalive = Keepalive(connection, clock=self._endpoint.clock, settings=self._endpoint.settings)
        self.probe = SkewProbe(
            partial(say, connection),
            clock=self._endpoint.clock,
            wall=self._endpoint.wall,
            seconds=self._endpoint.settings.skew_seconds,
        )
        connection.on_writable = self._flush_soon
        self._handler.connected(self.store)
        self._flush_soon()

    def received(self, connection: FrameConnection, payload: memoryview) -> None:
        """Hand messages on."""
        frame = PEER_CODEC.decode(payload)
        if isinstance(frame, Batch):
            self._budget.urgent(len(payload))
            if connection is self.connection:
                self._handler.received(self.store, cast("list[Message]", frame.messages))
        elif connection is not self.connection:
            return
        elif isinstance(frame, Alive):
            if self.probe is not None:
                self.probe.heard(frame)
        elif isinstance(frame, Inquiry):
            self._handler.asked(self.store, frame)
        elif isinstance(frame, Verdict):
            self._handler.judged(self.store, frame)
        else:
            raise FrameError(Reason.UNEXPECTED, f"{type(frame).__name__} between raft messages")

    def lost(self, connection: FrameConnection) -> None:
        """It is gone; if it was the one in use, its peer is."""
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
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._outbox:
            self._undelivered["disconnected"] += self._outbox.clear()
        self._lost.set()
        self._handler.disconnected(self.store)

    # Sending

    def send(self, message: Message) -> None:
        """Send a message with the others of this turn of the loop, or drop it."""
        if self.connection is None:
            self._undelivered["disconnected"] += 1
        elif not self._outbox.add(message):
            self._undelivered["full"] += 1
        elif not self._flushing:
            if self._outbox.pressing:
                self._flush_soon()
            elif self._later is None:
                clock = self._endpoint.clock
                self._later = clock.call_at(clock.now() + self._endpoint.settings.notice_seconds, self._flush_all)

    def say(self, frame: Inquiry | Verdict) -> None:
        """Send something that is no raft message, or drop it."""
        if self.connection is not None:
            say(self.connection, frame)

    def _flush_soon(self) -> None:
        if self.connection is not None and not self._flushing:
            self._flushing = True
            self._soon(self)

    def flush(self) -> None:
        """Send what waits for the end of this turn, and with it what could have waited longer."""
        self._flushing = False
        if self._outbox.pressing:
            self._flush_all()

    def _flush_all(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        while self._outbox and self.connection is not None and self.connection.writable:
            messages = self._outbox.take(self._endpoint.settings.batch_bytes)
            try:
                payload = batch_payload(cast("list[AnyMessage]", messages))
            except FrameError:
                self._undelivered["too-long"] += len(messages)
                continue
            self._budget.urgent(sum(map(len, payload)))
            self.connection.write(*payload)

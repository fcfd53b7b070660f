"""The links to all peers, for the raft messages of all groups.

Of two stores, the one whose name sorts first dials, so there is exactly one connection and no race. When the dialling
store connects again, the new connection replaces the old one: the dialler knows that the old one is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from evenkeel.runtime.backoff import Rng
from evenkeel.wire.frame_connection import Owner
from evenkeel_raft.core.raft_messages import Message
from evenkeel_raft.net.byte_budget import ByteBudget
from evenkeel_raft.net.clock_skew import Skew
from evenkeel_raft.net.peer_endpoint import Endpoint
from evenkeel_raft.net.peer_frames import Inquiry, Verdict
from evenkeel_raft.net.peer_link import Link, LinkHandler, Undelivered
from evenkeel_raft.shared.identity import Address

__all__ = ["Links"]


class Links:
    """All links of one store."""

    def __init__(self, endpoint: Endpoint, *, handler: LinkHandler, rng: Rng, budget: ByteBudget) -> None:
        self.undelivered: Undelivered = Undelivered()
        self._endpoint = endpoint
        self._handler = handler
        self._rng = rng
        self._budget = budget
        self._links: dict[str, Link] = {}
        self._loop = asyncio.get_running_loop()
        self._unflushed: list[Link] = []

    def update(self, peers: Mapping[str, Address]) -> None:
        """Replace the set of peers. A peer whose volume changed is a different peer."""
        for store, link in list(self._links.items()):
            if store not in peers or peers[store].volume != link.volume:
                del self._links[store]
                link.stop()
        for store, address in peers.items():
            if store not in self._links and store != self._endpoint.me.store:
                self._links[store] = self._make(store, address)

    def send(self, store: str, message: Message) -> None:
        """Send a message, or drop and count it; never blocks."""
        link = self._links.get(store)
        if link is None:
            self.undelivered["unknown-peer"] += 1
        else:
            link.send(message)

    def send_all(self, store: str, messages: Iterable[Message]) -> None:
        """Send several messages to one peer."""
        for message in messages:
            self.send(store, message)

    def send_frame(self, store: str, frame: Inquiry | Verdict) -> None:
        """Send an inquiry or its answer; dropped if the peer is not connected."""
        link = self._links.get(store)
        if link is not None:
            link.send_frame(frame)

    def flush(self) -> None:
        """Send now what waits for the end of this turn of the event loop."""
        links, self._unflushed = self._unflushed, []
        for link in links:
            link.flush()

    def connected(self, store: str) -> bool:
        """Whether a peer is connected."""
        link = self._links.get(store)
        return link is not None and link.connection is not None

    def last_received_at(self, store: str) -> float | None:
        """Return when bytes last arrived from a connected peer, to within `alive_seconds`."""
        link = self._links.get(store)
        return None if link is None or link.keepalive is None else link.keepalive.last_received_at

    def skews(self) -> dict[str, Skew]:
        """Return how far the wall clock of each measured, connected peer is ahead of ours."""
        probes = {store: link.probe for store, link in self._links.items() if link.probe is not None}
        return {store: probe.skew for store, probe in sorted(probes.items()) if probe.skew is not None}

    def owner_of(self, store: str) -> Owner:
        """Return the owner of a connection that a known peer dialled."""
        return self._links[store]

    async def close(self) -> None:
        """Close all links."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.stop()
        await asyncio.gather(*(link.stopped() for link in links))

    def _flush_soon(self, link: Link) -> None:
        if not self._unflushed:
            self._loop.call_soon(self.flush)
        self._unflushed.append(link)

    def _make(self, store: str, address: Address) -> Link:
        link = Link(
            store,
            volume=address.volume,
            endpoint=self._endpoint,
            handler=self._handler,
            budget=self._budget,
            undelivered=self.undelivered,
            flush_soon=self._flush_soon,
        )
        if self._endpoint.me.store < store:
            link.keep_dialling(self._rng)
        return link

"""One connection to each peer, for the raft messages of all groups.

Of two stores the one whose name comes first dials; so there is one connection, and no race between two. When the
dialling store connects anew the new connection replaces the old: it knows better whether the old one still lives.
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
        """Know these peers and no others. Where a peer's volume changed, it is another one."""
        for store, link in list(self._links.items()):
            if store not in peers or peers[store].volume != link.volume:
                del self._links[store]
                link.stop()
        for store, address in peers.items():
            if store not in self._links and store != self._endpoint.me.store:
                self._links[store] = self._make(store, address)

    def send(self, store: str, message: Message) -> None:
        """Send a message, or drop it and count it; never waits."""
        link = self._links.get(store)
        if link is None:
            self.undelivered["unknown-peer"] += 1
        else:
            link.send(message)

    def send_all(self, store: str, messages: Iterable[Message]) -> None:
        """Send messages to one peer."""
        for message in messages:
            self.send(store, message)

    def say(self, store: str, frame: Inquiry | Verdict) -> None:
        """Ask a peer, or answer it; lost where it is not connected."""
        link = self._links.get(store)
        if link is not None:
            link.say(frame)

    def flush(self) -> None:
        """Send at once what waits for the end of this turn of the loop."""
        links, self._unflushed = self._unflushed, []
        for link in links:
            link.flush()

    def connected(self, store: str) -> bool:
        """Whether a peer is there."""
        link = self._links.get(store)
        return link is not None and link.connection is not None

    def heard_at(self, store: str) -> float | None:
        """When a connected peer was last seen to live, by the clock; to within `alive_seconds`."""
        link = self._links.get(store)
        return None if link is None or link.keepalive is None else link.keepalive.heard_at

    def skews(self) -> dict[str, Skew]:
        """By connected peer that was measured: how far its wall clock is ahead of ours."""
        probes = {store: link.probe for store, link in self._links.items() if link.probe is not None}
        return {store: probe.skew for store, probe in sorted(probes.items()) if probe.skew is not None}

    def owner_of(self, store: str) -> Owner:
        """Return who takes a connection that a known peer dialled."""
        return self._links[store]

    async def close(self) -> None:
        """Hang up on everybody."""
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
            soon=self._flush_soon,
        )
        if self._endpoint.me.store < store:
            link.keep_dialling(self._rng)
        return link

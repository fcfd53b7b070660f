"""Facade over the links, snapshot transfers and rate limits of one store."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from evenkeel.runtime.backoff import Rng
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel.wire.frame_connection import Owner
from evenkeel.wire.framing import Drops
from evenkeel_raft.core.raft_messages import Message
from evenkeel_raft.net.byte_budget import ByteBudget, TableBudgets
from evenkeel_raft.net.clock_skew import Skew
from evenkeel_raft.net.files.file_receiver import FileHandler, FileReceiver
from evenkeel_raft.net.files.file_sender import FileSender
from evenkeel_raft.net.peer_endpoint import Endpoint
from evenkeel_raft.net.peer_frames import Inquiry, Purpose, Verdict
from evenkeel_raft.net.peer_link import LinkHandler
from evenkeel_raft.net.peer_links import Links
from evenkeel_raft.net.peer_tls import TlsFiles
from evenkeel_raft.shared.identity import Address, Identity, LinkSettings

__all__ = ["PeerHandler", "Peers"]


class PeerHandler(LinkHandler, FileHandler, Protocol):
    """Receives messages and snapshots from peers."""


class Peers:
    """One store's connections to all other stores."""

    def __init__(
        self,
        me: Identity,
        *,
        handler: PeerHandler,
        inbox: Path,
        bytes_per_second: float | None = None,
        table_of: Callable[[int], str] = lambda group: "",
        tls: TlsFiles | None = None,
        settings: LinkSettings | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`inbox` receives snapshots; `bytes_per_second` limits snapshots in and out, see `ByteBudget`.

        `table_of` returns the table of a group, for the limits of tables.
        """
        clock, rng = clock or SystemClock(), rng or random.Random()
        self._endpoint = Endpoint(me, clock=clock, settings=settings or LinkSettings(), tls=tls, wall_clock=wall_clock)
        self.budget = ByteBudget(bytes_per_second, clock=clock)
        self.tables = TableBudgets(self.budget, clock=clock)
        self._table_of = table_of
        self._links = Links(self._endpoint, handler=handler, rng=rng, budget=self.budget)
        self.send_snapshot = FileSender(self._endpoint, rng=rng, take=self._take).send
        self._receiver = FileReceiver(inbox, endpoint=self._endpoint, handler=handler, take=self._take)
        self.received = self._receiver.meter
        """Throughput of received snapshots."""

    async def start(self, host: str, port: int) -> int:
        """Listen for peers; return the port."""
        return await self._endpoint.listen(host, port, owner_of=self._owner_of)

    async def close(self) -> None:
        """Cancel snapshot transfers and close all connections; partially received snapshots stay."""
        await self._endpoint.close()
        await self._links.close()
        await self._receiver.close()
        await self._endpoint.close_connections()

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Replace the set of peers."""
        self._endpoint.peers = dict(peers)
        self._links.update(peers)

    def set_version(self, version: int) -> None:
        """Disconnect from stores that do not support this cluster version, and refuse them."""
        self._endpoint.set_version(version)

    # Messages

    def send(self, store: str, message: Message) -> None:
        """Send a message, or drop and count it; never blocks."""
        self._links.send(store, message)

    def send_all(self, store: str, messages: Iterable[Message]) -> None:
        """Send several messages to one store."""
        self._links.send_all(store, messages)

    def send_frame(self, store: str, frame: Inquiry | Verdict) -> None:
        """Send an inquiry or its answer; dropped if the store is not connected."""
        self._links.send_frame(store, frame)

    def flush(self) -> None:
        """Send now what waits for the end of this turn of the event loop."""
        self._links.flush()

    def connected(self, store: str) -> bool:
        """Whether a store is connected."""
        return self._links.connected(store)

    def last_received_at(self, store: str) -> float | None:
        """Return when bytes last arrived from a connected peer."""
        return self._links.last_received_at(store)

    def skews(self) -> dict[str, Skew]:
        """Return how far the wall clock of each measured, connected peer is ahead of ours."""
        return self._links.skews()

    # Snapshots

    def receiving(self, group: int, replica: int, *, term: int) -> bool:
        """Whether a snapshot announced in this term is being received for a local replica."""
        return self._receiver.receiving(group, replica, term=term)

    async def cancel_snapshot(self, group: int, replica: int) -> None:
        """Stop receiving snapshots for a local replica and delete what arrived."""
        await self._receiver.cancel(group, replica)

    async def sweep_snapshots(self, keep: Callable[[int, int], bool]) -> None:
        """Delete partial snapshots of replicas (group, replica) for which `keep` returns False."""
        await self._receiver.sweep(keep)

    # Statistics

    @property
    def addresses(self) -> Mapping[str, Address]:
        """The registered peers and their addresses."""
        return self._endpoint.peers

    @property
    def drops(self) -> Drops:
        """Dropped connections, by reason."""
        return self._endpoint.drops

    @property
    def undelivered(self) -> Counter[str]:
        """Messages that were not sent, by reason."""
        return self._links.undelivered

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why there is no connection, by peer."""
        return self._endpoint.refusals

    async def _take(self, group: int, size: int) -> None:
        """Wait until `size` bytes of a group may be copied."""
        await self.tables.take(self._table_of(group), size)

    def _owner_of(self, store: str, purpose: Purpose) -> Owner:
        return self._receiver.owner_of(store) if purpose == "files" else self._links.owner_of(store)

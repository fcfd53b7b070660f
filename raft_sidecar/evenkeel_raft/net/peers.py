"""Everything that goes on between one store and its peers."""

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
from evenkeel_raft.core.raft_messages import InstallSnapshot, Message
from evenkeel_raft.net.byte_budget import ByteBudget, TableBudgets
from evenkeel_raft.net.clock_skew import Skew
from evenkeel_raft.net.files.file_receiver import FileHandler, FileReceiver
from evenkeel_raft.net.files.file_sender import FileSender, Sent
from evenkeel_raft.net.files.snapshot_manifest import Manifest
from evenkeel_raft.net.peer_endpoint import Endpoint
from evenkeel_raft.net.peer_frames import Inquiry, Purpose, Verdict
from evenkeel_raft.net.peer_link import LinkHandler
from evenkeel_raft.net.peer_links import Links
from evenkeel_raft.net.peer_tls import TlsFiles
from evenkeel_raft.shared.identity import Address, Identity, LinkSettings

__all__ = ["PeerHandler", "Peers"]


class PeerHandler(LinkHandler, FileHandler, Protocol):
    """What a sidecar does with messages and snapshots."""


class Peers:
    """A store's side of all its connections to other stores."""

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
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`inbox` is where snapshots arrive; `bytes_per_second` is for snapshots in and out, see `ByteBudget`.

        `table_of` says which table a group is of, for the limits that tables have.
        """
        clock, rng = clock or SystemClock(), rng or random.Random()
        self._endpoint = Endpoint(me, clock=clock, settings=settings or LinkSettings(), tls=tls, wall=wall)
        self.budget = ByteBudget(bytes_per_second, clock=clock)
        self.tables = TableBudgets(self.budget, clock=clock)
        self._table_of = table_of
        self._links = Links(self._endpoint, handler=handler, rng=rng, budget=self.budget)
        self._sender = FileSender(self._endpoint, rng=rng, take=self._take)
        self._receiver = FileReceiver(inbox, endpoint=self._endpoint, handler=handler, take=self._take)
        self.received = self._receiver.meter
        """How fast snapshots come in."""

    async def start(self, host: str, port: int) -> int:
        """Listen for peers; returns the port."""
        return await self._endpoint.listen(host, port, welcome=self._welcome)

    async def close(self) -> None:
        """Hang up on everybody, after those who send snapshots were cancelled; what came in part stays."""
        await self._endpoint.close()
        await self._links.close()
        await self._receiver.close()
        await self._endpoint.hang_up()

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Know these stores and no others."""
        self._endpoint.peers = dict(peers)
        self._links.update(peers)

    def set_version(self, version: int) -> None:
        """Talk to no store any more that does not support this cluster version."""
        self._endpoint.set_version(version)

    # Messages

    def send(self, store: str, message: Message) -> None:
        """Send a message, or drop it and count it; never waits."""
        self._links.send(store, message)

    def send_all(self, store: str, messages: Iterable[Message]) -> None:
        """Send messages to one store."""
        self._links.send_all(store, messages)

    def say(self, store: str, frame: Inquiry | Verdict) -> None:
        """Ask a store, or answer it; lost where it is not connected."""
        self._links.say(store, frame)

    def flush(self) -> None:
        """Send at once what waits for the end of this turn of the loop: for callers that know to be done."""
        self._links.flush()

    def connected(self, store: str) -> bool:
        """Whether messages would get there."""
        return self._links.connected(store)

    def heard_at(self, store: str) -> float | None:
        """When a connected peer was last seen to live, by the clock."""
        return self._links.heard_at(store)

    def skews(self) -> dict[str, Skew]:
        """By connected peer that was measured: how far its wall clock is ahead of ours."""
        return self._links.skews()

    # Snapshots

    async def send_snapshot(
        self,
        store: str,
        *,
        message: InstallSnapshot,
        manifest: Manifest,
        directory: Path,
        progress: Callable[[int], None] | None = None,
    ) -> Sent:
        """Send a snapshot's files, then hand the message to the other store's handler; see `FileSender.send`."""
        return await self._sender.send(
            store, message=message, manifest=manifest, directory=directory, progress=progress
        )

    def receiving(self, group: int, replica: int, *, term: int) -> bool:
        """Whether a snapshot that was announced in this term is coming in for a replica of ours."""
        return self._receiver.receiving(group, replica, term=term)

    async def cancel_snapshot(self, group: int, replica: int) -> None:
        """Take in no snapshot for a replica of ours any more."""
        await self._receiver.cancel(group, replica)

    async def sweep_snapshots(self, keep: Callable[[int, int], bool]) -> None:
        """Delete what arrived in part for replicas (group, replica) that are not kept."""
        await self._receiver.sweep(keep)

    # Looking

    @property
    def drops(self) -> Drops:
        """Connections given up, by why."""
        return self._endpoint.drops

    @property
    def undelivered(self) -> Counter[str]:
        """Messages never sent, by why."""
        return self._links.undelivered

    @property
    def refusals(self) -> Mapping[str, str]:
        """By peer, why it and we do not talk at the moment."""
        return self._endpoint.refusals

    async def _take(self, group: int, size: int) -> None:
        """Wait until so much of a group may be copied."""
        await self.tables.take(self._table_of(group), size)

    def _welcome(self, store: str, purpose: Purpose) -> Owner:
        return self._receiver.owner_of(store) if purpose == "files" else self._links.owner_of(store)

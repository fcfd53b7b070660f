"""What the parts of a host share: settings, clocks, log, peers, state machine and counters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from evenkeel.runtime.backoff import Backoff
from evenkeel.runtime.clock import Clock
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.host.log_retention import LogRetention
from evenkeel_raft.host.snapshot_slots import SnapshotSlots
from evenkeel_raft.log.log_writer import LogWriter
from evenkeel_raft.net.peer_tls import TlsFiles
from evenkeel_raft.net.peers import Peers
from evenkeel_raft.shared.identity import Identity, LinkSettings

if TYPE_CHECKING:
    from evenkeel_raft.host.ready_queue import ReadyQueue

__all__ = ["BackgroundTasks", "HostContext", "HostCounters", "HostEnvironment"]


class HostCounters(Struct):
    """Counters since the process started."""

    proposals: int = 0
    proposed_bytes: int = 0
    reads: int = 0
    applied_entries: int = 0
    elections_won: int = 0
    handed_over: int = 0
    snapshots_sent: int = 0
    snapshots_failed: int = 0
    snapshots_restored: int = 0
    snapshot_bytes: int = 0
    wasted_bytes: int = 0
    """Bytes sent for snapshots that were cancelled."""
    compactions: int = 0
    refused_messages: Counter[str] = msgspec.field(default_factory=Counter)
    """Rejected messages, by reason."""


class BackgroundTasks:
    """Background tasks; an exception in one is a bug and ends the process."""

    def __init__(self, failed: asyncio.Future[None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """Cancel all tasks and wait for them."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)


class HostEnvironment(Struct, frozen=True, kw_only=True):
    """Where a host runs: its volume, identity, sockets and clocks."""

    directory: Path
    identity: Identity
    socket: Path
    settings: HostSettings
    link: LinkSettings
    tls: TlsFiles | None
    clock: Clock
    rng: Random
    wall_clock: Callable[[], float]

    @property
    def inbox(self) -> Path:
        """The directory for received snapshots."""
        return self.directory / "inbox"


class HostContext(Struct, frozen=True, kw_only=True):
    """Everything that a replica uses outside of itself."""

    settings: HostSettings
    retention: LogRetention
    clock: Clock
    rng: Random
    writer: LogWriter
    peers: Peers
    machine: SidecarSocket
    tasks: BackgroundTasks
    ready_queue: ReadyQueue
    counters: HostCounters
    outbox: Path
    """The directory for snapshots to be sent."""
    snapshot_slots: SnapshotSlots

    def backoff(self) -> Backoff:
        """Return a backoff for retries."""
        return Backoff(clock=self.clock, rng=self.rng, first=0.2, longest=10.0)

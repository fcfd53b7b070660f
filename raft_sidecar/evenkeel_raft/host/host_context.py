"""What a replica is lent by its host: time, chance, disk, network, state machine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
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
from evenkeel_raft.net.peers import Peers

if TYPE_CHECKING:
    from evenkeel_raft.host.ready_queue import ReadyQueue

__all__ = ["BackgroundTasks", "HostContext", "HostCounters"]


class HostCounters(Struct):
    """What happened since the process began."""

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
    """Of snapshots that were begun and then not wanted any more."""
    compactions: int = 0
    refused_messages: Counter[str] = msgspec.field(default_factory=Counter)
    """Messages that were not for any replica here, by why."""


class BackgroundTasks:
    """What goes on in the background; a failure ends the process, for it is a bug."""

    def __init__(self, failed: asyncio.Future[None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin something."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """End everything."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)


class HostContext(Struct, frozen=True, kw_only=True):
    """Everything outside of a replica."""

    settings: HostSettings
    allowance: LogRetention
    clock: Clock
    rng: Random
    writer: LogWriter
    peers: Peers
    machine: SidecarSocket
    tasks: BackgroundTasks
    pump: ReadyQueue
    tally: HostCounters
    outbox: Path
    """Where snapshots are made."""
    snapshot_slots: SnapshotSlots

    def backoff(self) -> Backoff:
        """Waits between attempts at something that failed."""
        return Backoff(clock=self.clock, rng=self.rng, first=0.2, longest=10.0)

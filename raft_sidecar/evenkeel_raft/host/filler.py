"""Snapshots that a leader sends to members that its log cannot bring up to date.

For each member: wait for a place (a store makes and sends only a few at a time), let the state machine write its state
to files, or use files that are being sent to another member, announce them to raft, send them, report how it ended.
What fails is reported after a pause, for raft asks for another snapshot at once. Nobody is filled any more who is no
member any more, or by one that does not lead any more.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from evenkeel.errors import EvenkeelError
from evenkeel_raft.core.errors import RefusedError
from evenkeel_raft.core.messages import InstallSnapshot
from evenkeel_raft.core.rawnode import Node
from evenkeel_raft.host.ports import Ports
from evenkeel_raft.net.files.manifest import Manifest, make_manifest
from evenkeel_raft.net.files.sender import Outcome

__all__ = ["Filler"]

_Result = TypeVar("_Result")


class _Files:
    """A snapshot on disk; deleted when the last of its users is done."""

    def __init__(self, directory: Path, index: int, manifest: Manifest) -> None:
        self.directory = directory
        self.index = index
        self.manifest = manifest
        self.users = 0


class Filler:
    """The members that one replica fills while it leads."""

    def __init__(
        self, node: Node, *, group: int, replica: int, ports: Ports, store_of: Callable[[int], str | None]
    ) -> None:
        self.work: Callable[[], None] = lambda: None
        """Has the replica do at once what its node wants."""
        self.problem = ""
        self._node = node
        self._group = group
        self._replica = replica
        self._ports = ports
        self._store_of = store_of
        self._filling: dict[int, asyncio.Task[None]] = {}
        self._progress: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._files: _Files | None = None
        self._making = asyncio.Lock()
        self._announced: InstallSnapshot | None = None
        self._made = 0

    # What the replica says

    def want(self, member: int) -> None:
        """A member needs a snapshot."""
        if member not in self._filling:
            self._filling[member] = task = self._ports.tasks.spawn(self._fill(member))
            task.add_done_callback(lambda _: self._filling.pop(member, None))

    def announced(self, message: InstallSnapshot) -> None:
        """The node's word that goes with a snapshot's files."""
        self._announced = message

    def keep(self, members: set[int]) -> None:
        """Fill nobody but these."""
        for member in [member for member in self._filling if member not in members]:
            self._filling[member].cancel()
            self._failures.pop(member, None)
        if not self._filling:
            self.problem = ""

    @property
    def floor(self) -> int | None:
        """The index that the log must reach back to, so that a member can go on from what it is sent."""
        return self._files.index if self._files is not None else None

    def progress(self) -> dict[str, float]:
        """How far each is, by store."""
        named = ((self._store_of(member), done) for member, done in self._progress.items())
        return {store: done for store, done in named if store is not None}

    # Filling

    async def _fill(self, member: int) -> None:
        self._progress[member] = 0.0
        try:
            async with self._ports.snapshot_slots:
                failure = await self._send(member)
            self._note(member, failure)
            if failure:
                await self._pause(member)
        finally:
            self._progress.pop(member, None)
            self._node.report_snapshot(member)
            self.work()

    async def _send(self, member: int) -> str:
        """Send a snapshot; returns what went wrong, or nothing."""
        store = self._store_of(member)
        if store is None or not self._node.leading:
            return ""
        try:
            async with self._snapshot() as files:
                message = self._announce(member, files.index)
                return await self._stream(member, store, message, files) if message is not None else ""
        except (EvenkeelError, OSError, RefusedError) as error:
            return str(error) if self._node.leading else ""

    async def _stream(self, member: int, store: str, message: InstallSnapshot, files: _Files) -> str:
        size, sent = max(1, files.manifest.size), 0

        def progress(so_far: int) -> None:
            nonlocal sent
            self._progress[member] = so_far / size
            self._ports.tally.snapshot_bytes += max(0, so_far - sent)
            sent = max(sent, so_far)

        try:
            result = await self._ports.peers.send_snapshot(
                store, message=message, manifest=files.manifest, directory=files.directory, progress=progress
            )
        except asyncio.CancelledError:
            self._ports.tally.wasted_bytes += sent
            raise
        if result.outcome is Outcome.STORED:
            self._ports.tally.snapshots_sent += 1
            return ""
        return f"{store} could not be filled: {result.outcome.value}: {result.detail}"

    def _announce(self, member: int, index: int) -> InstallSnapshot | None:
        """Let the node make the message; none where the member needs nothing any more."""
        self._announced = None
        self._node.send_snapshot(member, index)
        self.work()
        return self._announced

    def _note(self, member: int, failure: str) -> None:
        self.problem = failure
        if failure:
            self._ports.tally.snapshots_failed += 1
            self._failures[member] = self._failures.get(member, 0) + 1
        else:
            self._failures.pop(member, None)

    async def _pause(self, member: int) -> None:
        longest = min(10.0, 0.2 * 2 ** min(self._failures[member], 8))
        await self._ports.clock.sleep(longest * self._ports.chance.uniform(0.5, 1.0))

    # Files

    @asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[_Files]:
        async with self._making:
            if self._files is None or self._files.index < self._node.offset:
                self._files = await self._make()
            files = self._files
            files.users += 1
        try:
            yield files
        finally:
            files.users -= 1
            if not files.users:
                if self._files is files:
                    self._files = None
                await _on_thread(partial(shutil.rmtree, files.directory, ignore_errors=True))

    async def _make(self) -> _Files:
        self._made += 1
        directory = self._ports.outbox / f"{self._group}-{self._replica}-{self._made}"
        try:
            await _on_thread(partial(directory.mkdir, parents=True))
            taken = await self._ports.machine.snapshot(self._group, self._replica, directory)
            manifest = await _on_thread(partial(make_manifest, directory, taken.files))
        except BaseException:
            await _on_thread(partial(shutil.rmtree, directory, ignore_errors=True))
            raise
        return _Files(directory, taken.index, manifest)


async def _on_thread(work: Callable[[], _Result]) -> _Result:
    return await asyncio.shield(asyncio.to_thread(work))

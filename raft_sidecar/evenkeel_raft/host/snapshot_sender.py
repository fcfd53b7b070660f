"""Snapshots for members that the leader's log cannot bring up to date, and for a leader that lost its state.

A leader sends them to members, any other replica to its leader that asked for one. For each receiver: wait for a place
(a store makes and sends only a few at a time), let the state machine write its state to files, or use files that are
being sent to another member, announce them to raft, send them, report how it ended. What fails is reported after a
pause, for raft asks for another snapshot at once. Nobody is filled any more once that is another replica's business. A
member whose store goes away leaves its place to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from evenkeel.errors import EvenkeelError
from evenkeel_raft.core.errors import RefusedError
from evenkeel_raft.core.raft_messages import InstallSnapshot
from evenkeel_raft.core.rawnode import RawNode
from evenkeel_raft.host.host_context import HostContext
from evenkeel_raft.host.received_snapshots import remove_soon
from evenkeel_raft.net.files.file_sender import Outcome, Sent
from evenkeel_raft.net.files.snapshot_manifest import Manifest, make_manifest

__all__ = ["SnapshotSender"]

_LOOK_SECONDS: Final = 1.0
_AWAY_LOOKS: Final = 5
_Result = TypeVar("_Result")


class _Files:
    """A snapshot on disk; deleted when the last of its users is done."""

    def __init__(self, directory: Path, index: int, manifest: Manifest) -> None:
        self.directory = directory
        self.index = index
        self.manifest = manifest
        self.users = 0


class SnapshotSender:
    """The members that one replica fills."""

    def __init__(
        self, node: RawNode, *, group: int, replica: int, ports: HostContext, store_of: Callable[[int], str | None]
    ) -> None:
        self.work: Callable[[], None] = lambda: None
        """Has the replica do at once what its node wants."""
        self._node = node
        self._group = group
        self._replica = replica
        self._ports = ports
        self._store_of = store_of
        self._filling: dict[int, asyncio.Task[None]] = {}
        self._progress: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._problems: dict[int, str] = {}
        self._files: _Files | None = None
        self._making = asyncio.Lock()
        self._announced: InstallSnapshot | None = None
        self._made = 0

    # What the replica says

    def want(self, member: int) -> None:
        """A member needs a snapshot."""
        if member not in self._filling:
            self._filling[member] = task = self._ports.tasks.spawn(self._fill(member))
            task.add_done_callback(partial(self._ended, member))

    def _ended(self, member: int, task: asyncio.Task[None]) -> None:
        """Nobody is at it any more, also where a task was called off before it began."""
        if self._filling.get(member) is task:
            del self._filling[member]

    def announced(self, message: InstallSnapshot) -> None:
        """The node's word that goes with a snapshot's files."""
        self._announced = message

    def keep(self, members: set[int]) -> None:
        """Fill nobody but these."""
        for member in [member for member in self._filling if member not in members]:
            self._filling[member].cancel()
        for member in [member for member in {*self._failures, *self._problems} if member not in members]:
            self._forget_failures(member)

    @property
    def problem(self) -> str:
        """Why a member is not filled, if so."""
        return next((problem for member, problem in self._problems.items() if member in self._filling), "")

    @property
    def idle(self) -> bool:
        """Whether nobody is to be filled."""
        return not self._filling

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
        try:
            failure = await self._send(member)
            self._note(member, failure)
            if failure:
                await self._pause(member)
        finally:
            # First, for the node may ask for another as soon as it is told how this one ended, and asks only once.
            self._filling.pop(member, None)
            self._progress.pop(member, None)
            self._node.snapshots.report(member)
            self.work()

    async def _send(self, member: int) -> str:
        """Send a snapshot; returns what went wrong, or nothing."""
        store = self._store_of(member)
        if store is None or not self._node.snapshots.serves(member):
            return ""
        try:
            async with AsyncExitStack() as held:
                return await self._send_to(member, store, held)
        except (EvenkeelError, OSError, RefusedError) as error:
            return str(error) if self._node.snapshots.serves(member) else ""

    async def _send_to(self, member: int, store: str, held: AsyncExitStack) -> str:
        """Send as often as it takes. Who is away has no place meanwhile, but the files it had a part of stay."""
        files: _Files | None = None
        while True:
            await self._until_connected(member, store)
            async with self._ports.snapshot_slots:
                if files is None or files.index < self._node.snapshots.floor(member):
                    files = await held.enter_async_context(self._snapshot(self._node.snapshots.floor(member)))
                message = self._announce(member, files.index)
                if message is None:
                    return ""
                sent = await self._stream(member, store, message, files)
            if sent is not None:
                return "" if sent.outcome is Outcome.STORED else f"{store} could not be filled: {_explain(sent)}"

    async def _until_connected(self, member: int, store: str) -> None:
        while not self._ports.peers.connected(store):
            self._problems[member] = f"{store} is not connected: its replica waits to be filled"
            await self._ports.clock.sleep(_LOOK_SECONDS)

    async def _stream(self, member: int, store: str, message: InstallSnapshot, files: _Files) -> Sent | None:
        """Send the files once; None if the other store went away."""
        size, sent = max(1, files.manifest.size), 0

        def progress(so_far: int) -> None:
            nonlocal sent
            self._progress[member] = so_far / size
            self._ports.tally.snapshot_bytes += max(0, so_far - sent)
            sent = max(sent, so_far)

        self._progress[member] = 0.0
        sending = asyncio.ensure_future(
            self._ports.peers.send_snapshot(
                store, message=message, manifest=files.manifest, directory=files.directory, progress=progress
            )
        )
        try:
            result = await self._while_connected(store, sending)
        except asyncio.CancelledError:
            self._ports.tally.wasted_bytes += sent
            raise
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if result is not None and result.outcome is Outcome.STORED:
            self._ports.tally.snapshots_sent += 1
        return result

    async def _while_connected(self, store: str, sending: asyncio.Future[Sent]) -> Sent | None:
        """Wait for the end of a transfer, or until its receiver has been away for a while."""
        away = 0
        while away < _AWAY_LOOKS:
            pause = asyncio.ensure_future(self._ports.clock.sleep(_LOOK_SECONDS))
            try:
                await asyncio.wait((sending, pause), return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
            if sending.done():
                return sending.result()
            away = 0 if self._ports.peers.connected(store) else away + 1
        return None

    def _announce(self, member: int, index: int) -> InstallSnapshot | None:
        """Let the node make the message; none where the member needs nothing any more."""
        self._announced = None
        self._node.snapshots.send(member, index)
        self.work()
        return self._announced

    def _note(self, member: int, failure: str) -> None:
        if failure:
            self._ports.tally.snapshots_failed += 1
            self._failures[member] = self._failures.get(member, 0) + 1
            self._problems[member] = failure
        else:
            self._forget_failures(member)

    def _forget_failures(self, member: int) -> None:
        self._failures.pop(member, None)
        self._problems.pop(member, None)

    async def _pause(self, member: int) -> None:
        longest = min(10.0, 0.2 * 2 ** min(self._failures[member], 8))
        await self._ports.clock.sleep(longest * self._ports.rng.uniform(0.5, 1.0))

    # Files

    @asynccontextmanager
    async def _snapshot(self, floor: int) -> AsyncIterator[_Files]:
        async with self._making:
            if self._files is None or self._files.index < floor:
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
                remove_soon(files.directory)

    async def _make(self) -> _Files:
        self._made += 1
        directory = self._ports.outbox / f"{self._group}-{self._replica}-{self._made}"
        await _on_thread(partial(directory.mkdir, parents=True))
        taking = self._ports.machine.snapshot(self._group, self._replica, directory)
        try:
            taken = await asyncio.shield(taking)
            manifest = await _on_thread(partial(make_manifest, directory, taken.files))
        except BaseException:
            # Not before the state machine is done: what it still writes would stay.
            taking.add_done_callback(lambda _: remove_soon(directory))
            raise
        return _Files(directory, taken.index, manifest)


def _explain(sent: Sent) -> str:
    return f"{sent.outcome.value}: {sent.detail}"


async def _on_thread(work: Callable[[], _Result]) -> _Result:
    return await asyncio.shield(asyncio.to_thread(work))

"""Sends snapshots to members that the log cannot bring up to date, and to a leader that lost its state.

A leader sends snapshots to members; other replicas send one to their leader if it requests one. For each receiver:
wait for a slot, let the state machine write its state to files (or share the files of a transfer that is running),
announce the snapshot to raft, send the files, and report the result to raft. A failure is reported after a pause,
because raft requests another snapshot immediately. Transfers that are no longer this replica's task are cancelled. A
receiver whose store disconnects gives up its slot.
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
from evenkeel_raft.host.received_snapshots import remove_in_background
from evenkeel_raft.net.files.file_sender import Outcome, Sent
from evenkeel_raft.net.files.snapshot_manifest import Manifest, make_manifest

__all__ = ["SnapshotSender"]

_POLL_SECONDS: Final = 1.0
_MAX_MISSED_POLLS: Final = 5
_Result = TypeVar("_Result")


class _Files:
    """A snapshot on disk, deleted when its last user is done."""

    def __init__(self, directory: Path, index: int, manifest: Manifest) -> None:
        self.directory = directory
        self.index = index
        self.manifest = manifest
        self.users = 0


class SnapshotSender:
    """Sends the snapshots of one replica."""

    def __init__(
        self, node: RawNode, *, group: int, replica: int, context: HostContext, store_of: Callable[[int], str | None]
    ) -> None:
        self.process_ready: Callable[[], None] = lambda: None
        """Processes the node's output immediately; set by the replica."""
        self._node = node
        self._group = group
        self._replica = replica
        self._context = context
        self._store_of = store_of
        self._transfers: dict[int, asyncio.Task[None]] = {}
        self._progress: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._problems: dict[int, str] = {}
        self._files: _Files | None = None
        self._make_lock = asyncio.Lock()
        self._message: InstallSnapshot | None = None
        self._directories_made = 0

    # Requests of the replica

    def request(self, member: int) -> None:
        """Start a transfer to a member, unless one is running."""
        if member not in self._transfers:
            self._transfers[member] = task = self._context.tasks.spawn(self._transfer(member))
            task.add_done_callback(partial(self._ended, member))

    def _ended(self, member: int, task: asyncio.Task[None]) -> None:
        """Remove a transfer that has ended, also one that was cancelled before it started."""
        if self._transfers.get(member) is task:
            del self._transfers[member]

    def on_install_message(self, message: InstallSnapshot) -> None:
        """Take the raft message that belongs to the files being announced."""
        self._message = message

    def cancel_except(self, members: set[int]) -> None:
        """Cancel the transfers to all other members."""
        for member in [member for member in self._transfers if member not in members]:
            self._transfers[member].cancel()
        for member in [member for member in {*self._failures, *self._problems} if member not in members]:
            self._forget_failures(member)

    @property
    def problem(self) -> str:
        """Why a transfer makes no progress, or an empty string."""
        return next((problem for member, problem in self._problems.items() if member in self._transfers), "")

    @property
    def idle(self) -> bool:
        """Whether no transfer is running or waiting."""
        return not self._transfers

    @property
    def floor(self) -> int | None:
        """The index after which the log must be kept, so that a receiver can continue after its snapshot."""
        return self._files.index if self._files is not None else None

    def progress(self) -> dict[str, float]:
        """Return the progress of each transfer, by store."""
        named = ((self._store_of(member), done) for member, done in self._progress.items())
        return {store: done for store, done in named if store is not None}

    # Transfers

    async def _transfer(self, member: int) -> None:
        try:
            failure = await self._send(member)
            self._record_result(member, failure)
            if failure:
                await self._pause(member)
        finally:
            # Remove the transfer first: the report below may make the node request another snapshot, once.
            self._transfers.pop(member, None)
            self._progress.pop(member, None)
            self._node.snapshots.report(member)
            self.process_ready()

    async def _send(self, member: int) -> str:
        """Send a snapshot; return what failed, or an empty string."""
        store = self._store_of(member)
        if store is None or not self._node.snapshots.serves(member):
            return ""
        try:
            async with AsyncExitStack() as stack:
                return await self._send_to(member, store, stack)
        except (EvenkeelError, OSError, RefusedError) as error:
            return str(error) if self._node.snapshots.serves(member) else ""

    async def _send_to(self, member: int, store: str, stack: AsyncExitStack) -> str:
        """Send until it succeeds or fails. A disconnected receiver holds no slot, but its files stay."""
        files: _Files | None = None
        while True:
            await self._until_connected(member, store)
            async with self._context.snapshot_slots:
                if files is None or files.index < self._node.snapshots.floor(member):
                    files = await stack.enter_async_context(self._snapshot(self._node.snapshots.floor(member)))
                message = self._announce(member, files.index)
                if message is None:
                    return ""
                sent = await self._stream(member, store, message, files)
            if sent is not None:
                return "" if sent.outcome is Outcome.STORED else _explain(store, sent)

    async def _until_connected(self, member: int, store: str) -> None:
        while not self._context.peers.connected(store):
            self._problems[member] = f"snapshot transfer to {store} is waiting: the store is not connected"
            await self._context.clock.sleep(_POLL_SECONDS)

    async def _stream(self, member: int, store: str, message: InstallSnapshot, files: _Files) -> Sent | None:
        """Send the files once; return None if the receiver's store disconnected."""
        size, sent = max(1, files.manifest.size), 0

        def progress(so_far: int) -> None:
            nonlocal sent
            self._progress[member] = so_far / size
            self._context.counters.snapshot_bytes += max(0, so_far - sent)
            sent = max(sent, so_far)

        self._progress[member] = 0.0
        sending = asyncio.ensure_future(
            self._context.peers.send_snapshot(
                store, message=message, manifest=files.manifest, directory=files.directory, progress=progress
            )
        )
        try:
            result = await self._while_connected(store, sending)
        except asyncio.CancelledError:
            self._context.counters.wasted_bytes += sent
            raise
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if result is not None and result.outcome is Outcome.STORED:
            self._context.counters.snapshots_sent += 1
        return result

    async def _while_connected(self, store: str, sending: asyncio.Future[Sent]) -> Sent | None:
        """Wait for the end of a transfer, or until its receiver has been disconnected for a while."""
        away = 0
        while away < _MAX_MISSED_POLLS:
            pause = asyncio.ensure_future(self._context.clock.sleep(_POLL_SECONDS))
            try:
                await asyncio.wait((sending, pause), return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
            if sending.done():
                return sending.result()
            away = 0 if self._context.peers.connected(store) else away + 1
        return None

    def _announce(self, member: int, index: int) -> InstallSnapshot | None:
        """Let the node create the message; None if the member no longer needs a snapshot."""
        self._message = None
        self._node.snapshots.send(member, index)
        self.process_ready()
        return self._message

    def _record_result(self, member: int, failure: str) -> None:
        if failure:
            self._context.counters.snapshots_failed += 1
            self._failures[member] = self._failures.get(member, 0) + 1
            self._problems[member] = failure
        else:
            self._forget_failures(member)

    def _forget_failures(self, member: int) -> None:
        self._failures.pop(member, None)
        self._problems.pop(member, None)

    async def _pause(self, member: int) -> None:
        longest = min(10.0, 0.2 * 2 ** min(self._failures[member], 8))
        await self._context.clock.sleep(longest * self._context.rng.uniform(0.5, 1.0))

    # Files

    @asynccontextmanager
    async def _snapshot(self, floor: int) -> AsyncIterator[_Files]:
        async with self._make_lock:
            if self._files is None or self._files.index < floor:
                self._files = await self._make_snapshot()
            files = self._files
            files.users += 1
        try:
            yield files
        finally:
            files.users -= 1
            if not files.users:
                if self._files is files:
                    self._files = None
                remove_in_background(files.directory)

    async def _make_snapshot(self) -> _Files:
        self._directories_made += 1
        directory = self._context.outbox / f"{self._group}-{self._replica}-{self._directories_made}"
        await _in_thread(partial(directory.mkdir, parents=True))
        taking = self._context.machine.snapshot(self._group, self._replica, directory)
        try:
            taken = await asyncio.shield(taking)
            manifest = await _in_thread(partial(make_manifest, directory, taken.files))
        except BaseException:
            # Wait for the state machine: files that it writes after the deletion would stay.
            taking.add_done_callback(lambda _: remove_in_background(directory))
            raise
        return _Files(directory, taken.index, manifest)


def _explain(store: str, sent: Sent) -> str:
    return f"snapshot transfer to {store} failed: {sent.outcome.value}: {sent.detail}"


async def _in_thread(work: Callable[[], _Result]) -> _Result:
    return await asyncio.shield(asyncio.to_thread(work))

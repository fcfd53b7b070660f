"""The state machine that answers the sidecar's requests.

Requests are queued while the thread that owns the state is busy. Queued applies share one transaction, and so one sync
of the disk. Most writes are answered at commit, so no client waits for their apply: the machine waits a few
milliseconds for more applies, instead of syncing the disk for each.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from evenkeel.errors import StateMachineError
from evenkeel.runtime.directories import DataDirectory
from evenkeel.wire.socket_messages import (
    Applied,
    Apply,
    Done,
    Failed,
    Open,
    Opened,
    Restore,
    Role,
    SnapshotTaken,
    StoreMessage,
)
from evenkeel_reference.reference_snapshot import read_snapshot, write_snapshot
from evenkeel_reference.reference_state import State

__all__ = ["ReferenceMachine"]

_NO_ROLE: Final = Role(False, 0)
_BATCH_BYTES: Final = 1 << 20
_Result = TypeVar("_Result")


class _Job(NamedTuple):
    work: Callable[[], StoreMessage]
    answer: Callable[[Any], None]
    is_apply: bool


class ReferenceMachine:
    """All groups of one store, in one directory; implements `evenkeel.wire.store_socket.StateMachine`.

    Entries for which no client waits are applied after `batch_seconds` at the latest.
    """

    def __init__(self, directory: Path, *, batch_seconds: float = 0.01) -> None:
        self._batch_seconds = batch_seconds
        self._directory = DataDirectory(directory)
        self._state, self._damage = _open_state(directory / "state.db")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")
        self._jobs: deque[_Job] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._batched_bytes = 0
        self._batch_ended = asyncio.Event()
        self._restored: set[int] = set()
        self._replicas: dict[int, int] = {}
        self._roles: dict[int, Role] = {}
        self._applied: dict[int, int] = {}
        self._waiting: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}

    @property
    def volume(self) -> str:
        """The volume that the data belongs to; empty before the first sidecar connects."""
        return self._directory.volume

    async def stop(self) -> None:
        """Carry out all queued requests and release the directory."""
        self._batch_ended.set()
        while self._worker is not None:
            await self._worker
        self._thread.shutdown()
        self._state.close()
        self._directory.release()

    # Called by the server

    def replica(self, group: int) -> int | None:
        """Return the open replica of a group; None if the group is not open."""
        return self._replicas.get(group)

    def role_of(self, group: int) -> Role:
        """Return the role of a group as the sidecar last reported it."""
        return self._roles.get(group, _NO_ROLE)

    def groups(self) -> dict[int, int]:
        """Return the applied index of every open group."""
        return {group: self._applied[group] for group in self._replicas}

    async def until_applied(self, group: int, index: int) -> None:
        """Wait until an index is durably applied."""
        if self._applied.get(group, 0) < index:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(group, []).append((index, future))
            self._batch_ended.set()
            await future

    async def query(self, question: Callable[[State], _Result]) -> _Result:
        """Read from the state between two transactions."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question, self._state)

    # Requests of the sidecar

    def connected(self, volume: str) -> None:
        """Adopt the sidecar's volume if there is none yet."""
        self._directory.adopt_volume(volume)

    def disconnected(self) -> None:
        """Forget all roles."""
        self._roles.clear()

    def open(self, group: int, replica: int, request: Open, answer: Callable[[Opened | Failed], None]) -> None:
        """Open a group and answer with its applied index."""
        self._enqueue(partial(self._open, group, replica), partial(self._record, group, replica, answer))

    def apply(self, group: int, replica: int, request: Apply, answer: Callable[[Applied | Failed], None]) -> None:
        """Apply entries."""
        work = partial(self._apply, group, replica, request)
        self._batched_bytes += sum(len(entry.data) for entry in request.entries)
        # An index without an entry belongs to raft, which may wait for it.
        if self._batched_bytes >= _BATCH_BYTES or len(request.entries) <= request.last - request.first:
            self._batch_ended.set()
        self._enqueue(work, partial(self._record, group, replica, answer), is_apply=True)

    def snapshot(
        self, group: int, replica: int, directory: Path, answer: Callable[[SnapshotTaken | Failed], None]
    ) -> None:
        """Write a group to files."""
        self._enqueue(partial(self._snapshot, group, directory), answer)

    def restore(self, group: int, replica: int, request: Restore, answer: Callable[[Applied | Failed], None]) -> None:
        """Replace a group with a snapshot."""
        work = partial(self._restore, group, replica, request)
        self._enqueue(work, partial(self._record, group, replica, answer))

    def close(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Close a group until it is opened again."""
        self._enqueue(Done, partial(self._record, group, replica, answer))

    def destroy(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Delete a group."""
        self._enqueue(partial(self._destroy, group, replica), partial(self._record, group, replica, answer))

    def role(self, group: int, replica: int, role: Role) -> None:
        """Note who leads."""
        self._roles[group] = role

    def _record(self, group: int, replica: int, answer: Callable[[Any], None], body: StoreMessage) -> None:
        """Record the applied index of an open group, then answer."""
        match body:
            case Opened(applied):
                self._replicas[group] = replica
                self._advance(group, applied)
            case Applied(index):
                self._advance(group, index)
            case Done() if self._replicas.get(group) == replica:
                del self._replicas[group]
        answer(body)

    def _advance(self, group: int, applied: int) -> None:
        self._applied[group] = applied
        for index, future in self._waiting.pop(group, []):
            if index > applied:
                self._waiting.setdefault(group, []).append((index, future))
            elif not future.done():
                future.set_result(None)

    # The queue

    def _enqueue(
        self, work: Callable[[], StoreMessage], answer: Callable[[Any], None], *, is_apply: bool = False
    ) -> None:
        self._jobs.append(_Job(work, answer, is_apply))
        if not is_apply:
            self._batch_ended.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._jobs:
            await self._wait_for_batch()
            jobs = [self._jobs.popleft()]
            while jobs[0].is_apply and self._jobs and self._jobs[0].is_apply:
                jobs.append(self._jobs.popleft())
            if not self._jobs:
                self._batch_ended.clear()
                self._batched_bytes = 0
            bodies = await loop.run_in_executor(self._thread, self._execute, jobs)
            for job, body in zip(jobs, bodies, strict=True):
                job.answer(body)
            if self._state.needs_checkpoint and not self._jobs:
                await loop.run_in_executor(self._thread, self._state.checkpoint)
        self._worker = None

    async def _wait_for_batch(self) -> None:
        """Wait for more applies, unless a client waits for one."""
        if not self._waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._batch_seconds):
                    await self._batch_ended.wait()

    # On the thread that owns the state

    def _execute(self, jobs: Sequence[_Job]) -> list[StoreMessage]:
        try:
            if not jobs[0].is_apply:
                return [jobs[0].work()]
            with self._state.transaction():
                return [_answer_of(job.work) for job in jobs]
        except (sqlite3.Error, OSError, OverflowError, StateMachineError) as error:
            return [Failed(str(error)) for _ in jobs]

    def _apply(self, group: int, replica: int, request: Apply) -> StoreMessage:
        return Applied(self._state.apply(group, replica, request))

    def _open(self, group: int, replica: int) -> StoreMessage:
        known = self._state.group(group)
        if known is None or known.replica != replica:
            self._state.create(group, replica)
            known = None
        if self._damage and group not in self._restored:
            return Opened(0, "damaged", self._damage)
        return Opened(known.applied, "ok") if known and known.applied else Opened(0, "empty")

    def _snapshot(self, group: int, directory: Path) -> StoreMessage:
        with self._state.transaction():
            contents = self._state.contents(group)
            return SnapshotTaken(contents.applied, write_snapshot(directory, contents))

    def _restore(self, group: int, replica: int, request: Restore) -> StoreMessage:
        self._state.replace(group, replica, read_snapshot(Path(request.dir), index=request.index))
        self._restored.add(group)
        return Applied(request.index)

    def _destroy(self, group: int, replica: int) -> StoreMessage:
        self._state.destroy(group, replica)
        return Done()


def _answer_of(work: Callable[[], StoreMessage]) -> StoreMessage:
    try:
        return work()
    except StateMachineError as error:
        return Failed(str(error))


def _open_state(path: Path) -> tuple[State, str]:
    """Open the file; rename a damaged file, so that it can be inspected, and start with an empty one."""
    try:
        return State(path), ""
    except sqlite3.DatabaseError as error:
        for leftover in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            if leftover.exists():
                leftover.rename(leftover.with_name(leftover.name + ".damaged"))
        return State(path), f"{path}: {error}"

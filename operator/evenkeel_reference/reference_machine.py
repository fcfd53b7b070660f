"""The state machine's half of the socket.

Requests queue up while the thread that owns the state works. Whatever applies have gathered meanwhile go into one
transaction, and so share one sync of the disk. Nobody waits for most of them, for writes are answered when they are
committed; so they gather for some milliseconds more, or the disk would be synced once for each.
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
    StoreSays,
)
from evenkeel_reference.reference_snapshot import read_snapshot, write_snapshot
from evenkeel_reference.reference_state import State

__all__ = ["Machine"]

_NO_ROLE: Final = Role(False, 0)
_GATHER_BYTES: Final = 1 << 20
_Result = TypeVar("_Result")


class _Job(NamedTuple):
    work: Callable[[], StoreSays]
    answer: Callable[[Any], None]
    is_apply: bool


class Machine:
    """All groups of one store, in a directory of its own; see `evenkeel.wire.store_socket.StateMachine`.

    Entries that nobody waits for are applied after `gather_seconds` at the latest.
    """

    def __init__(self, directory: Path, *, gather_seconds: float = 0.01) -> None:
        self._gather_seconds = gather_seconds
        self._directory = DataDirectory(directory)
        self._state, self._damage = _open_state(directory / "state.db")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")
        self._jobs: deque[_Job] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._gathered = 0
        self._hurry = asyncio.Event()
        self._restored: set[int] = set()
        self._replicas: dict[int, int] = {}
        self._roles: dict[int, Role] = {}
        self._applied: dict[int, int] = {}
        self._waiting: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}

    @property
    def volume(self) -> str:
        """The volume that the data belongs to; empty before the first sidecar."""
        return self._directory.volume

    async def stop(self) -> None:
        """Finish what is under way and let go of the directory."""
        self._hurry.set()
        while self._worker is not None:
            await self._worker
        self._thread.shutdown()
        self._state.close()
        self._directory.release()

    # What clients want to know

    def replica(self, group: int) -> int | None:
        """Return the replica that is open here."""
        return self._replicas.get(group)

    def role_of(self, group: int) -> Role:
        """Return who leads, as far as the sidecar said."""
        return self._roles.get(group, _NO_ROLE)

    def groups(self) -> dict[int, int]:
        """Return the applied index of every open group."""
        return {group: self._applied[group] for group in self._replicas}

    async def until_applied(self, group: int, index: int) -> None:
        """Wait until an index is applied, durably."""
        if self._applied.get(group, 0) < index:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(group, []).append((index, future))
            self._hurry.set()
            await future

    async def look(self, question: Callable[[State], _Result]) -> _Result:
        """Ask the state something, between two transactions."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question, self._state)

    # What the sidecar asks

    def connected(self, volume: str) -> None:
        """Take the sidecar's volume as our own where we have none."""
        self._directory.adopt_volume(volume)

    def disconnected(self) -> None:
        """Nobody leads any more, as far as we know."""
        self._roles.clear()

    def open(self, group: int, replica: int, request: Open, answer: Callable[[Opened | Failed], None]) -> None:
        """Tell how far the group is."""
        self._ask(partial(self._open, group, replica), partial(self._note, group, replica, answer))

    def apply(self, group: int, replica: int, request: Apply, answer: Callable[[Applied | Failed], None]) -> None:
        """Apply entries."""
        work = partial(self._apply, group, replica, request)
        self._gathered += sum(len(entry.data) for entry in request.entries)
        # Raft itself waits for its own entries, which are those that are not here.
        if self._gathered >= _GATHER_BYTES or len(request.entries) <= request.last - request.first:
            self._hurry.set()
        self._ask(work, partial(self._note, group, replica, answer), is_apply=True)

    def snapshot(
        self, group: int, replica: int, directory: Path, answer: Callable[[SnapshotTaken | Failed], None]
    ) -> None:
        """Write a group to files."""
        self._ask(partial(self._snapshot, group, directory), answer)

    def restore(self, group: int, replica: int, request: Restore, answer: Callable[[Applied | Failed], None]) -> None:
        """Replace a group by a snapshot."""
        work = partial(self._restore, group, replica, request)
        self._ask(work, partial(self._note, group, replica, answer))

    def close(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Forget about a group until it is opened again."""
        self._ask(Done, partial(self._note, group, replica, answer))

    def destroy(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Delete a group."""
        self._ask(partial(self._destroy, group, replica), partial(self._note, group, replica, answer))

    def role(self, group: int, replica: int, role: Role) -> None:
        """Know who leads."""
        self._roles[group] = role

    def _note(self, group: int, replica: int, answer: Callable[[Any], None], body: StoreSays) -> None:
        """Know how far each open group is, then answer."""
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

    def _ask(self, work: Callable[[], StoreSays], answer: Callable[[Any], None], *, is_apply: bool = False) -> None:
        self._jobs.append(_Job(work, answer, is_apply))
        if not is_apply:
            self._hurry.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._jobs:
            await self._gather()
            jobs = [self._jobs.popleft()]
            while jobs[0].is_apply and self._jobs and self._jobs[0].is_apply:
                jobs.append(self._jobs.popleft())
            if not self._jobs:
                self._hurry.clear()
                self._gathered = 0
            bodies = await loop.run_in_executor(self._thread, self._carry_out, jobs)
            for job, body in zip(jobs, bodies, strict=True):
                job.answer(body)
            if self._state.untidy and not self._jobs:
                await loop.run_in_executor(self._thread, self._state.tidy)
        self._worker = None

    async def _gather(self) -> None:
        """Let more applies come, unless somebody waits."""
        if not self._waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._gather_seconds):
                    await self._hurry.wait()

    # On the state's thread

    def _carry_out(self, jobs: Sequence[_Job]) -> list[StoreSays]:
        try:
            if not jobs[0].is_apply:
                return [jobs[0].work()]
            with self._state.transaction():
                return [_attempt(job.work) for job in jobs]
        except (sqlite3.Error, OSError, OverflowError, StateMachineError) as error:
            return [Failed(str(error)) for _ in jobs]

    def _apply(self, group: int, replica: int, request: Apply) -> StoreSays:
        return Applied(self._state.apply(group, replica, request))

    def _open(self, group: int, replica: int) -> StoreSays:
        known = self._state.group(group)
        if known is None or known.replica != replica:
            self._state.create(group, replica)
            known = None
        if self._damage and group not in self._restored:
            return Opened(0, "damaged", self._damage)
        return Opened(known.applied, "ok") if known and known.applied else Opened(0, "empty")

    def _snapshot(self, group: int, directory: Path) -> StoreSays:
        with self._state.transaction():
            contents = self._state.contents(group)
            return SnapshotTaken(contents.applied, write_snapshot(directory, contents))

    def _restore(self, group: int, replica: int, request: Restore) -> StoreSays:
        self._state.replace(group, replica, read_snapshot(Path(request.dir), index=request.index))
        self._restored.add(group)
        return Applied(request.index)

    def _destroy(self, group: int, replica: int) -> StoreSays:
        self._state.destroy(group, replica)
        return Done()


def _attempt(work: Callable[[], StoreSays]) -> StoreSays:
    try:
        return work()
    except StateMachineError as error:
        return Failed(str(error))


def _open_state(path: Path) -> tuple[State, str]:
    """Open the file; one that is damaged is put aside, for people to look at, and begun anew."""
    try:
        return State(path), ""
    except sqlite3.DatabaseError as error:
        for leftover in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            if leftover.exists():
                leftover.rename(leftover.with_name(leftover.name + ".damaged"))
        return State(path), f"{path}: {error}"

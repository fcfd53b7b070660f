"""The state machine's half of the socket.

    event loop    takes requests in and answers them; knows who leads and who waits for which index
    `apply`       one thread; owns the engine. Whatever applies have gathered while it worked, of all groups, are its
                  next piece of work
    `fold`        one thread; folds groups, takes hashes at barriers (`upkeep`)
    `copy`        two threads; write and load snapshots, in small steps with rests between them (`pace`)

Requests of one group are carried out in the order in which they came; those of different groups do not wait for each
other. A snapshot only begins on the thread that applies, and a restore only ends there.

Writes are acknowledged when they are committed, so nobody waits for them to be applied, readers aside. A transaction
costs processor and disk whatever is in it, and takes both from those who commit. So the thread that applies rests for
a moment after each, and what came meanwhile goes together; unless somebody waits for it, or it is much.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import duckdb
import msgspec

from evenkeel.errors import StateMachineError
from evenkeel.runtime.clock import Clock, SystemClock
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
from evenkeel_store.engine.database import Cursor, is_damage, is_fatal
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.journal import KeptGroup
from evenkeel_store.engine.log_time import LogClocks
from evenkeel_store.engine.row_reader import RowReader
from evenkeel_store.engine.snapshot_files import SnapshotFiles, fill_log, load_tables, read_files, write_files
from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle
from evenkeel_store.engine.table_engine import Request, TableEngine
from evenkeel_store.engine.table_layout import TableLayout
from evenkeel_store.state_machine.background_tasks import BackgroundTasks

__all__ = ["StoreStateMachine"]

_NO_ROLE: Final = Role(False, 0)
_ROUND_BYTES: Final = 32 << 20
_RESTS: Final = 20.0
"""How much longer than it worked the thread that applies rests."""
_LONGEST_REST: Final = 0.1
_MUCH_BYTES: Final = 256 << 10
_Result = TypeVar("_Result")
_Answer = Callable[[Any], None]


class _Job(NamedTuple):
    answer: _Answer
    request: Request | None = None
    """To be applied, together with others."""
    work: Callable[[], StoreSays] | None = None
    """To be done on the thread that applies."""
    long: Callable[[], Coroutine[Any, Any, StoreSays | None]] | None = None
    """To be done over several threads, while the rest of the group waits; None where it answers by itself."""

    @property
    def size(self) -> int:
        """Bytes to be applied."""
        return 0 if self.request is None else sum(len(entry.data) for entry in self.request.apply.entries)


class _Snapshot(NamedTuple):
    cursor: Cursor
    layout: TableLayout | None
    kept: KeptGroup


class StoreStateMachine:
    """All groups of one store; see `evenkeel.wire.store_socket.StateMachine`."""

    def __init__(
        self, directory: Path, *, memory: str = "", threads: int = 0, reserve: int = 0, clock: Clock | None = None
    ) -> None:
        """`reserve` is how many bytes of the disk must stay free."""
        self.directory = DataDirectory(directory, reserve=reserve)
        try:
            self.engine = TableEngine(directory, memory=memory, threads=threads, full=self.directory.full)
        except BaseException:
            self.directory.release()
            raise
        self.counters = self.engine.counters
        self.calls: Counter[tuple[str, str]] = Counter()
        """Flight calls, by method and outcome."""
        self.rows = RowReader(self.engine.database, self.engine.tables_lock)
        self._apply_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="apply")
        self.throttle = SnapshotThrottle()
        self._copy_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="copy", initializer=_give_way)
        self._clock = clock or SystemClock()
        self._jobs: dict[int, deque[_Job]] = {}
        self._jobs_bytes = 0
        self._hurry = asyncio.Event()
        self._stopping = False
        self._busy: set[int] = set()
        self._worker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._replicas: dict[int, int] = {}
        self._hosted: dict[tuple[str, int], int] = {}
        self._roles: dict[int, Role] = {}
        self._waiting: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}
        self.log_clocks = LogClocks() if clock is None else LogClocks(clock.now)
        self.background = BackgroundTasks(
            self.engine,
            self.rows,
            full=self.directory.full,
            report=self.report,
            doubted=self._doubted,
            measured=self._measured,
            clock=self._clock,
        )
        self.on_role: Callable[[int], None] = lambda group: None
        """Called when a group's role is told."""
        self.on_doubt: Callable[[Group], None] = lambda group: None
        """Called when something else is known against a group's rows, and when the sidecar has to be told again."""
        self.on_size: Callable[[Group], None] = lambda group: None
        """Called when a group's size has changed noticeably, and after it was opened."""

    @property
    def volume(self) -> str:
        """The volume that the data belongs to; empty where there is none yet."""
        return self.directory.volume

    async def stop(self) -> None:
        """Finish what is under way and let go of the directory."""
        self._stopping = True
        self.throttle.stop()
        while self._worker is not None:
            self._hurry.set()
            await self._worker
        await self.background.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self._copy_threads, self._apply_thread):
            pool.shutdown()
        self.engine.close()
        self.directory.release()

    # What clients want to know

    def hosted(self, table: str, partition: int) -> Group | None:
        """Return the group of a partition that is open here."""
        number = self._hosted.get((table, partition))
        return None if number is None else self.engine.groups.get(number)

    def hosted_tables(self) -> set[str]:
        """Return the keys of tables of which a partition is open here."""
        return {table for table, _ in self._hosted}

    def groups_of(self, table: str) -> list[Group]:
        """Return the groups of a table's partitions, or of all tables', that are open here."""
        found = [self.engine.groups.get(number) for (key, _), number in self._hosted.items() if table in ("", key)]
        return [group for group in found if group is not None]

    def open_groups(self) -> dict[int, int]:
        """Return the replica of every open group."""
        return dict(self._replicas)

    def role_of(self, group: int) -> Role:
        """Return who leads, as far as the sidecar said."""
        return self._roles.get(group, _NO_ROLE)

    def applied(self, group: int) -> int:
        """Return how far a group is, durably."""
        known = self.engine.groups.get(group)
        return 0 if known is None else known.metadata.applied

    async def until_applied(self, group: int, index: int) -> None:
        """Wait until an index is applied, durably."""
        if self.applied(group) < index:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(group, []).append((index, future))
            self._hurry.set()
            await future

    async def until_hashed(self, group: int, index: int) -> str:
        """Wait for the hash taken at a barrier, and return it; empty where it could not be taken."""
        await self.until_applied(group, index)
        known = self.engine.groups.get(group)
        return "" if known is None else await self.background.until_hashed(known, index)

    async def look(self, question: Callable[[TableEngine], _Result]) -> _Result:
        """Ask the engine something, between two transactions."""
        return await asyncio.get_running_loop().run_in_executor(self._apply_thread, question, self.engine)

    def report(self, group: int, error: BaseException) -> None:
        """Take note of an error that somebody met while reading: a damaged file, or a database to be opened again."""
        if is_fatal(error):
            self._spawn(self.look(TableEngine.reopen))
        elif is_damage(error):
            self._spawn(self._mark_damaged(group, str(error).partition("\n")[0]))

    async def _mark_damaged(self, group: int, why: str) -> None:
        """Serve a group's rows no more, and tell the sidecar, which else finds out when it next asks."""
        await self.look(lambda engine: engine.mark_damaged(group, why))
        known = self.engine.groups.get(group)
        if known is not None:
            self.on_doubt(known)

    def _doubted(self, group: Group) -> None:
        self.on_doubt(group)

    def _measured(self, group: Group) -> None:
        self.on_size(group)

    async def discard(self, group: int, why: str) -> None:
        """Rely on a group's rows no more."""
        await self._mark_damaged(group, why)
        self.counters["condemnations"] += 1

    # What the sidecar asks

    def connected(self, volume: str) -> None:
        """Take the sidecar's volume as our own where we have none."""
        self.directory.adopt_volume(volume)
        self.background.start()

    def disconnected(self) -> None:
        """Nobody leads any more, as far as we know."""
        self._roles.clear()

    def open(self, group: int, replica: int, request: Open, answer: Callable[[Opened | Failed], None]) -> None:
        """Tell how far the group is."""
        work = partial(self.engine.open, group, replica, table=request.table, partition=request.partition)
        self._ask(group, _Job(partial(self._opened, group, replica, request, answer), work=work))

    def apply(self, group: int, replica: int, request: Apply, answer: Callable[[Applied | Failed], None]) -> None:
        """Apply entries."""
        self.throttle.served()
        self._ask(group, _Job(answer, request=Request(group, replica, request)))

    def snapshot(
        self, group: int, replica: int, directory: Path, answer: Callable[[SnapshotTaken | Failed], None]
    ) -> None:
        """Write a group to files."""
        self._ask(group, _Job(answer, long=partial(self._begin_snapshot, group, replica, directory, answer)))

    def restore(self, group: int, replica: int, request: Restore, answer: Callable[[Applied | Failed], None]) -> None:
        """Replace a group by a snapshot."""
        self._ask(group, _Job(answer, long=partial(self._restore, group, replica, request)))

    def close(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Forget about a group until it is opened again."""
        self._ask(group, _Job(partial(self._closed, group, replica, answer), work=Done))

    def destroy(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Delete a group."""

        def work() -> StoreSays:
            self.engine.destroy(group, replica)
            return Done()

        self._ask(group, _Job(partial(self._closed, group, replica, answer), work=work))

    def role(self, group: int, replica: int, role: Role) -> None:
        """Know who leads."""
        self._roles[group] = role
        self.on_role(group)

    def _opened(self, group: int, replica: int, request: Open, answer: _Answer, body: StoreSays) -> None:
        if isinstance(body, Opened):
            self._replicas[group] = replica
            # Replaced, never changed: threads of the Flight server look at it.
            self._hosted = {**self._hosted, (request.table, request.partition): group}
        answer(body)
        self._observe_time(group)
        known = self.engine.groups.get(group)
        if known is None:
            return
        if known.doubt and not known.metadata.damage:
            self.on_doubt(known)
        if known.size is not None:
            self.on_size(known)
        else:
            self.background.measure_soon(known)

    def _closed(self, group: int, replica: int, answer: _Answer, body: StoreSays) -> None:
        if isinstance(body, Done) and self._replicas.get(group) == replica:
            del self._replicas[group]
            self._hosted = {place: number for place, number in self._hosted.items() if number != group}
            self._roles.pop(group, None)
            self.log_clocks.forget(group)
            for _, future in self._waiting.pop(group, []):
                future.cancel()
        answer(body)

    # The queue

    def _ask(self, group: int, job: _Job) -> None:
        self._jobs.setdefault(group, deque()).append(job)
        self._jobs_bytes += job.size
        if job.request is None or self._jobs_bytes >= _MUCH_BYTES:
            self._hurry.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while jobs := self._next_jobs():
            began = self._clock.now()
            bodies = await loop.run_in_executor(self._apply_thread, self._carry_out, jobs)
            for job, body in zip(jobs, bodies, strict=True):
                job.answer(body)
            self._after_round({job.request.group for job in jobs if job.request is not None})
            await self.background.slow_down()
            await self._rest(began)
        self._worker = None

    async def _rest(self, began: float) -> None:
        """Let what comes soon go together, unless somebody waits for it."""
        seconds = min(_RESTS * (self._clock.now() - began), _LONGEST_REST)
        others = any(job.request is None for jobs in self._jobs.values() for job in jobs)
        if seconds <= 0 or self._stopping or self._waiting or others or self._jobs_bytes >= _MUCH_BYTES:
            return
        self._hurry.clear()
        timer = self._clock.call_at(self._clock.now() + seconds, self._hurry.set)
        await self._hurry.wait()
        timer.cancel()

    def _next_jobs(self) -> list[_Job]:
        """Take what can be done now: of every group its applies up to the next other request, or that request."""
        taken: list[_Job] = []
        size = 0
        for group in [group for group in self._jobs if group not in self._busy]:
            jobs = self._jobs[group]
            if jobs[0].long is not None:
                self._start(group, jobs.popleft())
            elif jobs[0].work is not None:
                taken.append(jobs.popleft())
            else:
                while jobs and jobs[0].request is not None and size < _ROUND_BYTES:
                    size += jobs[0].size
                    taken.append(jobs.popleft())
            if not jobs:
                del self._jobs[group]
        self._jobs_bytes -= size
        return taken

    def _start(self, group: int, job: _Job) -> None:
        """Let a long job run; its group waits, the others do not."""
        assert job.long is not None
        self._busy.add(group)

        async def carry_out(work: Callable[[], Coroutine[Any, Any, StoreSays | None]]) -> None:
            body: StoreSays | None
            try:
                body = await work()
            except (duckdb.Error, OSError, StateMachineError) as error:
                body = Failed(str(error))
            finally:
                self._busy.discard(group)
            if body is not None:
                job.answer(body)
            self._wake(group)
            if self._worker is None:
                self._worker = asyncio.create_task(self._work())

        self._spawn(carry_out(job.long))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _after_round(self, groups: set[int]) -> None:
        for group in groups:
            self._observe_time(group)
            self._wake(group)
        self.background.applied(groups)

    def _observe_time(self, group: int) -> None:
        known = self.engine.groups.get(group)
        if known is not None:
            self.log_clocks.observe(known)

    def _wake(self, group: int) -> None:
        applied = self.applied(group)
        for index, future in self._waiting.pop(group, []):
            if index > applied:
                self._waiting.setdefault(group, []).append((index, future))
            elif not future.done():
                future.set_result(None)

    # On the thread that applies

    def _carry_out(self, jobs: Sequence[_Job]) -> list[StoreSays]:
        applies = [job.request for job in jobs if job.request is not None]
        answers = iter(self._apply(applies) if applies else [])
        return [next(answers) if job.request is not None else _attempt(job.work) for job in jobs]

    def _apply(self, requests: Sequence[Request]) -> Sequence[StoreSays]:
        try:
            answers: Sequence[StoreSays] = self.engine.apply(requests)
            self._checkpoint()
        except (duckdb.Error, OSError) as error:
            answers = [Failed(str(error)) for _ in requests]
        return answers

    def _checkpoint(self) -> None:
        """Move the write-ahead log into the file, where that is due and there is room for it."""
        if self.directory.full():
            return
        try:
            with self.engine.tables_lock:
                self.engine.database.checkpoint()
        except duckdb.Error as error:
            if is_fatal(error):
                self.engine.reopen()

    # Snapshots

    async def _begin_snapshot(self, number: int, replica: int, directory: Path, answer: _Answer) -> None:
        """Begin on the thread that applies, and let the group go on while the files are written."""
        begun = await self.look(partial(_begin, number=number, replica=replica))
        self._spawn(self._write_snapshot(begun, directory, answer))

    async def _write_snapshot(self, begun: _Snapshot, directory: Path, answer: _Answer) -> None:
        def write() -> list[str]:
            with contextlib.closing(begun.cursor):
                names = write_files(begun.cursor, begun.layout, begun.kept, directory, throttle=self.throttle)
                self.counters["snapshots"] += 1
                return names

        try:
            names = await asyncio.get_running_loop().run_in_executor(self._copy_threads, write)
        except (duckdb.Error, OSError) as error:
            if begun.layout is not None:
                self.report(begun.layout.group, error)
            answer(Failed(f"snapshot: {error}"))
        else:
            answer(SnapshotTaken(begun.kept.metadata.applied, names))

    async def _restore(self, number: int, replica: int, request: Restore) -> StoreSays:
        """Load on a thread of its own, and change places on the thread that applies."""
        tables = await self.look(TableEngine.table_number)

        def load() -> SnapshotFiles:
            files = read_files(Path(request.dir), index=request.index)
            layout = files.layout(number, rows=tables)
            if layout is not None:
                load_tables(self.engine.database, files, layout, throttle=self.throttle)
            return files

        files = await asyncio.get_running_loop().run_in_executor(self._copy_threads, load)
        own = {"replica": replica, "rows": tables, "damage": ""}
        kept = KeptGroup(msgspec.structs.replace(files.kept.metadata, **own), files.kept.uses)
        await self.look(lambda engine: engine.adopt(number, replica, kept, partial(fill_log, files)))
        self.counters["restores"] += 1
        self._observe_time(number)
        self.on_doubt(self.engine.groups[number])
        self.background.measure_soon(self.engine.groups[number])
        return Applied(request.index)


def _give_way() -> None:
    """Have this thread run when nobody else wants to.

    A low priority alone would have whoever wakes up meanwhile wait until its time slice is over, which is longer than
    a write takes.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _begin(engine: TableEngine, *, number: int, replica: int) -> _Snapshot:
    """Begin the transaction that a snapshot is written from."""
    group = engine.groups.get(number)
    if group is None or group.metadata.replica != replica:
        raise StateMachineError(f"group {number} is not open for replica {replica}: open it first")
    if group.metadata.damage:
        raise StateMachineError(f"group {number} is damaged: {group.metadata.damage}")
    cursor = engine.database.cursor()
    cursor.execute("BEGIN")
    # DuckDB's transaction begins with its first look at the database.
    cursor.execute("SELECT n FROM journal LIMIT 0").fetchall()
    return _Snapshot(cursor, group.layout, group.kept())


def _attempt(work: Callable[[], StoreSays] | None) -> StoreSays:
    assert work is not None
    try:
        return work()
    except (duckdb.Error, OSError, StateMachineError) as error:
        return Failed(str(error))

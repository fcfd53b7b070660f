"""Snapshots written and restored while other groups go on.

Two low-priority threads copy the rows, throttled (`snapshot_throttle`). Only the start of a snapshot and the end of a
restore run on the apply thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import duckdb
import msgspec

from evenkeel.errors import StateMachineError
from evenkeel.wire.socket_messages import Applied, Failed, Restore, SnapshotTaken
from evenkeel_store.engine.database import Cursor
from evenkeel_store.engine.journal import KeptGroup
from evenkeel_store.engine.snapshot_files import SnapshotFiles, fill_log, load_tables, read_files, write_files
from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle
from evenkeel_store.engine.table_engine import TableEngine
from evenkeel_store.engine.table_layout import TableLayout
from evenkeel_store.state_machine.apply_queue import Answer, ApplyQueue
from evenkeel_store.state_machine.task_set import TaskSet

__all__ = ["SnapshotJobs"]


class _Snapshot(NamedTuple):
    cursor: Cursor
    """In the transaction that the snapshot is read from."""
    layout: TableLayout | None
    kept: KeptGroup


class SnapshotJobs:
    """Writes and restores snapshots; the jobs run on the event loop."""

    def __init__(
        self,
        engine: TableEngine,
        queue: ApplyQueue,
        *,
        throttle: SnapshotThrottle,
        tasks: TaskSet,
        report: Callable[[int, BaseException], None],
    ) -> None:
        """`report` gets errors that groups' rows cause."""
        self._engine = engine
        self._queue = queue
        self._throttle = throttle
        self._tasks = tasks
        self._report = report
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="copy", initializer=_lower_priority)

    def close(self) -> None:
        """End the copy threads."""
        self._threads.shutdown()

    async def write(self, number: int, replica: int, directory: Path, answer: Answer) -> None:
        """Begin a snapshot; the group goes on while its files are written."""
        begun = await self._queue.call(partial(_begin, number=number, replica=replica))
        self._tasks.spawn(self._write_files(begun, directory, answer))

    async def _write_files(self, begun: _Snapshot, directory: Path, answer: Answer) -> None:
        def write() -> list[str]:
            with contextlib.closing(begun.cursor):
                names = write_files(begun.cursor, begun.layout, begun.kept, directory, throttle=self._throttle)
                self._engine.counters["snapshots"] += 1
                return names

        try:
            names = await asyncio.get_running_loop().run_in_executor(self._threads, write)
        except (duckdb.Error, OSError) as error:
            if begun.layout is not None:
                self._report(begun.layout.group, error)
            answer(Failed(f"snapshot: {error}"))
        else:
            answer(SnapshotTaken(begun.kept.metadata.applied, names))

    async def restore(self, number: int, replica: int, request: Restore) -> Applied:
        """Load a snapshot into new tables, then replace the group with them."""
        tables = await self._queue.call(TableEngine.table_number)

        def load() -> SnapshotFiles:
            files = read_files(Path(request.dir), index=request.index)
            layout = files.layout(number, rows=tables)
            if layout is not None:
                load_tables(self._engine.database, files, layout, throttle=self._throttle)
            return files

        files = await asyncio.get_running_loop().run_in_executor(self._threads, load)
        own = {"replica": replica, "rows": tables, "damage": ""}
        kept = KeptGroup(msgspec.structs.replace(files.kept.metadata, **own), files.kept.uses)
        await self._queue.call(lambda engine: engine.adopt(number, replica, kept, partial(fill_log, files)))
        self._engine.counters["restores"] += 1
        return Applied(request.index)


def _lower_priority() -> None:
    """Run the calling thread only when a CPU is idle.

    A high nice value is not enough: a thread that wakes up would still wait for the end of the time slice, which is
    longer than a write takes.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _begin(engine: TableEngine, *, number: int, replica: int) -> _Snapshot:
    """Begin the transaction that a snapshot is read from."""
    group = engine.groups.get(number)
    if group is None or group.metadata.replica != replica:
        raise StateMachineError(f"group {number} is not open for replica {replica}: open it first")
    if group.metadata.damage:
        raise StateMachineError(f"group {number} is damaged: {group.metadata.damage}")
    cursor = engine.database.cursor()
    cursor.execute("BEGIN")
    # DuckDB's transaction begins with its first query.
    cursor.execute("SELECT n FROM journal LIMIT 0").fetchall()
    return _Snapshot(cursor, group.layout, group.kept())

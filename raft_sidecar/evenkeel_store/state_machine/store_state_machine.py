"""The state machine that the sidecar drives over its socket: all groups of one store.

event loop       takes requests and answers them; knows the roles and who waits for which index
`apply` thread   owns the engine and applies entries of all groups (`apply_queue`)
`fold` thread    folds groups and takes hashes at barriers (`background_tasks`)
`copy` threads   write and load snapshots (`snapshot_jobs`)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

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
    StoreMessage,
)
from evenkeel_store.engine.database import is_damage, is_fatal
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.log_time import LogClocks
from evenkeel_store.engine.row_reader import RowReader
from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle
from evenkeel_store.engine.table_engine import Request, TableEngine
from evenkeel_store.state_machine.apply_queue import Answer, ApplyQueue, Job
from evenkeel_store.state_machine.background_tasks import BackgroundTasks
from evenkeel_store.state_machine.open_groups import OpenGroups
from evenkeel_store.state_machine.snapshot_jobs import SnapshotJobs
from evenkeel_store.state_machine.task_set import TaskSet

__all__ = ["StoreStateMachine"]


class StoreStateMachine:
    """All groups of one store; implements `evenkeel.wire.store_socket.StateMachine`."""

    def __init__(
        self, directory: Path, *, memory: str = "", threads: int = 0, reserve: int = 0, clock: Clock | None = None
    ) -> None:
        """`reserve` is the number of bytes to keep free on the disk."""
        self.directory = DataDirectory(directory, reserve=reserve)
        try:
            self.engine = TableEngine(directory, memory=memory, threads=threads, full=self.directory.full)
        except BaseException:
            self.directory.release()
            raise
        self.groups = OpenGroups(self.engine.groups)
        self.counters = self.engine.counters
        self.calls: Counter[tuple[str, str]] = Counter()
        """Flight calls, by method and outcome."""
        self.rows = RowReader(self.engine.database, self.engine.tables_lock)
        self.throttle = SnapshotThrottle()
        self.log_clocks = LogClocks() if clock is None else LogClocks(clock.now)
        clock = clock or SystemClock()
        full = self.directory.full
        self._tasks = TaskSet()
        self.queue = ApplyQueue(self.engine, full=full, after_round=self._after_round, tasks=self._tasks, clock=clock)
        self._snapshots = SnapshotJobs(
            self.engine, self.queue, throttle=self.throttle, tasks=self._tasks, report=self.report
        )
        self.background = BackgroundTasks(
            self.engine,
            self.rows,
            full=full,
            report=self.report,
            on_doubt=self._notify_doubt,
            on_size=self._notify_size,
            clock=clock,
        )
        self.on_role: Callable[[int], None] = lambda group: None
        """Called when the sidecar reports a group's role."""
        self.on_doubt: Callable[[Group], None] = lambda group: None
        """Called when a group's doubt or damage changes, and when the sidecar must get it again."""
        self.on_size: Callable[[Group], None] = lambda group: None
        """Called when a group's size changes noticeably, and after the group is opened."""

    @property
    def volume(self) -> str:
        """The volume that the data belongs to; empty if none is set yet."""
        return self.directory.volume

    async def stop(self) -> None:
        """Finish what is under way and release the directory."""
        self.throttle.stop()
        await self.queue.finish()
        await self.background.stop()
        await self._tasks.wait()
        self._snapshots.close()
        self.queue.close()
        self.engine.close()
        self.directory.release()

    async def until_hashed(self, group: int, index: int) -> str:
        """Wait for the hash at a barrier and return it; empty if it could not be taken."""
        await self.queue.until_applied(group, index)
        known = self.engine.groups.get(group)
        return "" if known is None else await self.background.until_hashed(known, index)

    # The observers are set after construction, hence these two.

    def _notify_doubt(self, group: Group) -> None:
        self.on_doubt(group)

    def _notify_size(self, group: Group) -> None:
        self.on_size(group)

    # Errors

    def report(self, group: int, error: BaseException) -> None:
        """Handle a read error: mark a damaged group, or reopen a database that is unusable."""
        if is_fatal(error):
            self._tasks.spawn(self.queue.call(TableEngine.reopen))
        elif is_damage(error):
            self._tasks.spawn(self._mark_damaged(group, str(error).partition("\n")[0]))

    async def discard(self, group: int, why: str) -> None:
        """Give up a group's rows, so that the sidecar restores them."""
        await self._mark_damaged(group, why)
        self.counters["condemnations"] += 1

    async def _mark_damaged(self, group: int, why: str) -> None:
        """Stop serving a group's rows, and notify the sidecar without waiting for its next request."""
        await self.queue.call(lambda engine: engine.mark_damaged(group, why))
        known = self.engine.groups.get(group)
        if known is not None:
            self.on_doubt(known)

    # Requests of the sidecar

    def connected(self, volume: str) -> None:
        """Adopt the sidecar's volume if none is set, and start the background tasks."""
        self.directory.adopt_volume(volume)
        self.background.start()

    def disconnected(self) -> None:
        """Forget the roles: without the sidecar they are unknown."""
        self.groups.clear_roles()

    def open(self, group: int, replica: int, request: Open, answer: Callable[[Opened | Failed], None]) -> None:
        """Open a replica and answer with its applied index."""
        work = partial(self.engine.open, group, replica, table=request.table, partition=request.partition)
        self.queue.put(group, Job(partial(self._opened, group, replica, request, answer), work=work))

    def apply(self, group: int, replica: int, request: Apply, answer: Callable[[Applied | Failed], None]) -> None:
        """Apply entries."""
        self.throttle.note_client()
        self.queue.put(group, Job(answer, request=Request(group, replica, request)))

    def snapshot(
        self, group: int, replica: int, directory: Path, answer: Callable[[SnapshotTaken | Failed], None]
    ) -> None:
        """Write a snapshot of a group."""
        self.queue.put(group, Job(answer, long=partial(self._snapshots.write, group, replica, directory, answer)))

    def restore(self, group: int, replica: int, request: Restore, answer: Callable[[Applied | Failed], None]) -> None:
        """Replace a group with a snapshot."""
        self.queue.put(group, Job(answer, long=partial(self._restore, group, replica, request)))

    def close(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Close a replica; its data stays."""
        self.queue.put(group, Job(partial(self._closed, group, replica, answer), work=Done))

    def destroy(self, group: int, replica: int, answer: Callable[[Done | Failed], None]) -> None:
        """Delete a replica."""

        def work() -> StoreMessage:
            self.engine.destroy(group, replica)
            return Done()

        self.queue.put(group, Job(partial(self._closed, group, replica, answer), work=work))

    def role(self, group: int, replica: int, role: Role) -> None:
        """Record the role of a group."""
        self.groups.set_role(group, role)
        self.on_role(group)

    # After a request

    def _opened(self, group: int, replica: int, request: Open, answer: Answer, body: StoreMessage) -> None:
        if isinstance(body, Opened):
            self.groups.add(group, replica, table=request.table, partition=request.partition)
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
            self.background.schedule_measurement(known)

    def _closed(self, group: int, replica: int, answer: Answer, body: StoreMessage) -> None:
        if isinstance(body, Done) and self.groups.remove(group, replica):
            self.log_clocks.forget(group)
            self.queue.cancel_waiting(group)
        answer(body)

    async def _restore(self, number: int, replica: int, request: Restore) -> Applied:
        answer = await self._snapshots.restore(number, replica, request)
        self._observe_time(number)
        group = self.engine.groups[number]
        self.on_doubt(group)
        self.background.schedule_measurement(group)
        return answer

    async def _after_round(self, groups: set[int]) -> None:
        for group in groups:
            self._observe_time(group)
        self.background.applied(groups)
        await self.background.apply_backpressure()

    def _observe_time(self, group: int) -> None:
        known = self.engine.groups.get(group)
        if known is not None:
            self.log_clocks.observe(known)

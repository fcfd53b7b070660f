"""Background jobs of partitions: at most one for each partition, and a limited number at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator

from evenkeel.runtime.work_queue import WorkQueue
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["PartitionJobs"]


class PartitionJobs:
    """Runs jobs in a task group; a partition is enqueued when its job has ended."""

    def __init__(self, limit: int, queue: WorkQueue[Partition]) -> None:
        self._limit = limit
        self._queue = queue
        self._tasks: asyncio.TaskGroup | None = None
        self._busy: set[Partition] = set()
        self._waiting: dict[Partition, None] = {}

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Run jobs in this task group from now on; the jobs of the previous group have ended with it."""
        self._tasks = tasks

    def busy(self, partition: Partition) -> bool:
        """Whether a job of the partition is running."""
        return partition in self._busy

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._busy)

    def has_slot(self, partition: Partition) -> bool:
        """Whether a job may start; if not, the partition is enqueued when a slot becomes free."""
        if len(self._busy) < self._limit:
            return True
        self._waiting[partition] = None
        return False

    def run(self, partition: Partition, job: Callable[[], Coroutine[None, None, None]]) -> None:
        """Start a job; the caller has checked `has_slot`."""
        assert self._tasks is not None
        self._busy.add(partition)
        self._tasks.create_task(job()).add_done_callback(lambda _: self._ended(partition))

    def _ended(self, partition: Partition) -> None:
        self._busy.discard(partition)
        self._queue.add(partition)
        for waiting in list(self._waiting)[: self._limit - len(self._busy)]:
            del self._waiting[waiting]
            self._queue.add(waiting)

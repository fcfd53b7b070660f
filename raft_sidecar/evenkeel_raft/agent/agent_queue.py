"""What the agent has to look at again, and where the jobs that follow from it run.

Level-based: an event only says *which* partition to look at, never what happened to it. Whatever is heard while a
partition waits for its turn is one look in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator

from evenkeel.runtime.clock import Clock
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["Pool", "Work"]


class Work:
    """The partitions to look at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stirred: dict[Partition, None] = {}
        self._some = asyncio.Event()

    def stir(self, partition: Partition) -> None:
        """Look at the partition soon."""
        self._stirred[partition] = None
        self._some.set()

    def stir_all(self, partitions: Iterable[Partition]) -> None:
        """Look at these soon."""
        self._stirred.update(dict.fromkeys(partitions))
        self._some.set()

    def stir_at(self, partition: Partition, when: float) -> None:
        """Look at the partition at that time."""
        self._clock.call_at(when, lambda: self.stir(partition))

    async def next(self) -> Iterable[Partition]:
        """Wait until there is something to look at, and take all of it."""
        await self._some.wait()
        self._some.clear()
        taken, self._stirred = self._stirred, {}
        return taken


class Pool:
    """Jobs of partitions, one each, so many at a time; a partition whose job has ended is looked at again."""

    def __init__(self, limit: int, work: Work) -> None:
        self._limit = limit
        self._work = work
        self._tasks: asyncio.TaskGroup | None = None
        self._busy: set[Partition] = set()
        self._waiting: dict[Partition, None] = {}

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Run jobs in this group from now on; those of the one before have ended with it."""
        self._tasks = tasks

    def busy(self, partition: Partition) -> bool:
        """Whether a job of the partition is under way."""
        return partition in self._busy

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._busy)

    def room(self, partition: Partition) -> bool:
        """Whether a job may begin; if not, the partition will be looked at again when one may."""
        if len(self._busy) < self._limit:
            return True
        self._waiting[partition] = None
        return False

    def run(self, partition: Partition, job: Callable[[], Coroutine[None, None, None]]) -> None:
        """Begin a job; there must be room."""
        assert self._tasks is not None
        self._busy.add(partition)
        self._tasks.create_task(job()).add_done_callback(lambda _: self._ended(partition))

    def _ended(self, partition: Partition) -> None:
        self._busy.discard(partition)
        self._work.stir(partition)
        for waiting in list(self._waiting)[: self._limit - len(self._busy)]:
            del self._waiting[waiting]
            self._work.stir(waiting)

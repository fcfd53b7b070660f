"""The queue of the sidecar's requests, and the thread that carries them out.

Requests of one group run in the order in which they arrived. Requests of different groups do not wait for each other.
Each round takes the applies of all groups that are waiting, and the engine merges them into few transactions.

Writes are acknowledged when raft commits them, so only readers wait for an apply. A transaction costs CPU and disk
whatever its size. The apply thread therefore pauses after each round to collect a larger batch, unless a reader waits,
a request of another kind is queued, or the batch is large already.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

import duckdb

from evenkeel.errors import StateMachineError
from evenkeel.runtime.clock import Clock
from evenkeel.wire.socket_messages import Failed, StoreMessage
from evenkeel_store.engine.database import is_fatal
from evenkeel_store.engine.table_engine import Request, TableEngine
from evenkeel_store.state_machine.task_set import TaskSet

__all__ = ["Answer", "ApplyQueue", "Job"]

_ROUND_BYTES: Final = 32 << 20
_PAUSE_FACTOR: Final = 20.0
"""The pause after a round is this many times as long as the round took."""
_MAX_PAUSE: Final = 0.1
_LARGE_BATCH_BYTES: Final = 256 << 10
_Result = TypeVar("_Result")
Answer = Callable[[Any], None]


class Job(NamedTuple):
    """One request; exactly one of `request`, `work` and `long` is set."""

    answer: Answer
    request: Request | None = None
    """Entries to apply, merged with those of other jobs."""
    work: Callable[[], StoreMessage] | None = None
    """Runs on the apply thread."""
    long: Callable[[], Coroutine[Any, Any, StoreMessage | None]] | None = None
    """Runs on the event loop while the group's other jobs wait; returns None if it answers by itself."""

    @property
    def size(self) -> int:
        """Bytes to apply."""
        return 0 if self.request is None else sum(len(entry.data) for entry in self.request.apply.entries)


class ApplyQueue:
    """Queued jobs of all groups, the apply thread, and the readers that wait for an index."""

    def __init__(
        self,
        engine: TableEngine,
        *,
        full: Callable[[], str],
        after_round: Callable[[set[int]], Awaitable[None]],
        tasks: TaskSet,
        clock: Clock,
    ) -> None:
        """`full` returns why the disk takes no writes; `after_round` gets the groups that were applied to."""
        self._engine = engine
        self._full = full
        self._after_round = after_round
        self._tasks = tasks
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="apply")
        self._jobs: dict[int, deque[Job]] = {}
        self._jobs_bytes = 0
        self._end_pause = asyncio.Event()
        self._stopping = False
        self._busy: set[int] = set()
        self._worker: asyncio.Task[None] | None = None
        self._waiting: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}

    def put(self, group: int, job: Job) -> None:
        """Queue a job."""
        self._jobs.setdefault(group, deque()).append(job)
        self._jobs_bytes += job.size
        if job.request is None or self._jobs_bytes >= _LARGE_BATCH_BYTES:
            self._end_pause.set()
        self._ensure_worker()

    async def call(self, function: Callable[[TableEngine], _Result]) -> _Result:
        """Call a function with the engine on the apply thread, between two transactions."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, self._engine)

    async def finish(self) -> None:
        """Carry out everything that is queued, without further pauses."""
        self._stopping = True
        while self._worker is not None:
            self._end_pause.set()
            await self._worker

    def close(self) -> None:
        """End the apply thread."""
        self._thread.shutdown()

    # Waiting for an index

    def applied(self, group: int) -> int:
        """Return a group's durably applied index."""
        known = self._engine.groups.get(group)
        return 0 if known is None else known.metadata.applied

    async def until_applied(self, group: int, index: int) -> None:
        """Wait until an index is durably applied; cancelled if the group is closed."""
        if self.applied(group) < index:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(group, []).append((index, future))
            self._end_pause.set()
            await future

    def cancel_waiting(self, group: int) -> None:
        """Cancel those who wait for an index of a group."""
        for _, future in self._waiting.pop(group, []):
            future.cancel()

    def _wake(self, group: int) -> None:
        applied = self.applied(group)
        for index, future in self._waiting.pop(group, []):
            if index > applied:
                self._waiting.setdefault(group, []).append((index, future))
            elif not future.done():
                future.set_result(None)

    # On the event loop

    def _ensure_worker(self) -> None:
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while jobs := self._next_jobs():
            began = self._clock.now()
            bodies = await loop.run_in_executor(self._thread, self._carry_out, jobs)
            for job, body in zip(jobs, bodies, strict=True):
                job.answer(body)
            groups = {job.request.group for job in jobs if job.request is not None}
            for group in groups:
                self._wake(group)
            await self._after_round(groups)
            await self._pause(began)
        self._worker = None

    async def _pause(self, began: float) -> None:
        """Let more entries arrive, unless a reader or another request waits."""
        seconds = min(_PAUSE_FACTOR * (self._clock.now() - began), _MAX_PAUSE)
        others = any(job.request is None for jobs in self._jobs.values() for job in jobs)
        if seconds <= 0 or self._stopping or self._waiting or others or self._jobs_bytes >= _LARGE_BATCH_BYTES:
            return
        self._end_pause.clear()
        timer = self._clock.call_at(self._clock.now() + seconds, self._end_pause.set)
        await self._end_pause.wait()
        timer.cancel()

    def _next_jobs(self) -> list[Job]:
        """Take one round: of each group either its applies up to the next other job, or that job."""
        taken: list[Job] = []
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

    def _start(self, group: int, job: Job) -> None:
        """Start a long job; only its own group waits for it."""
        assert job.long is not None
        self._busy.add(group)
        self._tasks.spawn(self._run_long(group, job, job.long))

    async def _run_long(
        self, group: int, job: Job, work: Callable[[], Coroutine[Any, Any, StoreMessage | None]]
    ) -> None:
        body: StoreMessage | None
        try:
            body = await work()
        except (duckdb.Error, OSError, StateMachineError) as error:
            body = Failed(str(error))
        finally:
            self._busy.discard(group)
        if body is not None:
            job.answer(body)
        self._wake(group)
        self._ensure_worker()

    # On the apply thread

    def _carry_out(self, jobs: Sequence[Job]) -> list[StoreMessage]:
        applies = [job.request for job in jobs if job.request is not None]
        answers = iter(self._apply(applies) if applies else [])
        return [next(answers) if job.request is not None else _attempt(job.work) for job in jobs]

    def _apply(self, requests: Sequence[Request]) -> Sequence[StoreMessage]:
        try:
            answers: Sequence[StoreMessage] = self._engine.apply(requests)
            self._checkpoint()
        except (duckdb.Error, OSError) as error:
            answers = [Failed(str(error)) for _ in requests]
        return answers

    def _checkpoint(self) -> None:
        """Checkpoint the database if that is due and the disk has room."""
        if self._full():
            return
        try:
            with self._engine.tables_lock:
                self._engine.database.checkpoint()
        except duckdb.Error as error:
            if is_fatal(error):
                self._engine.reopen()


def _attempt(work: Callable[[], StoreMessage] | None) -> StoreMessage:
    assert work is not None
    try:
        return work()
    except (duckdb.Error, OSError, StateMachineError) as error:
        return Failed(str(error))

"""Writes to one partition, one call after the other: whatever comes while one is under way goes together in the next.

So many small writes at once cost as few calls, and as few entries of the log, as the partition is slow. Appends keep to
themselves: should a store refuse what went together, everybody's part is tried again alone, and rows without a key
would then be there twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, Literal

import pyarrow as pa
from msgspec import Struct

from evenkeel.client.retries import PASSING, Trying
from evenkeel.errors import StoreError

__all__ = ["Lane", "Op"]

Op = Literal["upsert", "append", "delete"]
Send = Callable[[Op, list[pa.RecordBatch], Trying], int]
_TOGETHER_BYTES: Final = 8 << 20


class _Job(Struct):
    """What one caller writes."""

    op: Op
    batches: list[Any]
    trying: Trying
    future: Future[int]

    @property
    def size(self) -> int:
        return sum(batch.nbytes for batch in self.batches)

    def goes_with(self, other: _Job) -> bool:
        same = self.op == other.op and self.batches[0].schema == other.batches[0].schema
        return same and self.op != "append"


class Lane:
    """The way to one partition; `send` writes batches and returns their log index."""

    def __init__(self, send: Send, pool: Executor) -> None:
        self._send = send
        self._pool = pool
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._busy = False

    def add(self, op: Op, batches: list[pa.RecordBatch], trying: Trying) -> Future[int]:
        """Write batches, soon; the future has the log index that they are in.

        It may be cancelled until they are sent.
        """
        job = _Job(op, batches, trying, Future())
        with self._lock:
            self._waiting.append(job)
            begin, self._busy = not self._busy, True
        if begin:
            self._pool.submit(self._work)
        return job.future

    def _work(self) -> None:
        while jobs := self._next():
            self._carry_out(jobs)

    def _next(self) -> list[_Job]:
        """Take what goes together, in its order."""
        with self._lock:
            jobs: list[_Job] = []
            size = 0
            while self._waiting and (not jobs or self._waiting[0].goes_with(jobs[0])):
                size += self._waiting[0].size
                if jobs and size > _TOGETHER_BYTES:
                    break
                job = self._waiting.popleft()
                if job.future.set_running_or_notify_cancel():
                    jobs.append(job)
            self._busy = bool(jobs)
            return jobs

    def _carry_out(self, jobs: Sequence[_Job]) -> None:
        latest = max((job.trying for job in jobs), key=lambda trying: trying.until)
        try:
            index = self._send(jobs[0].op, _together(jobs), latest)
        except StoreError as error:
            if len(jobs) > 1 and not isinstance(error, PASSING):
                for job in jobs:
                    self._carry_out([job])
                return
            _fail(jobs, error)
        except BaseException as error:  # whatever it is, somebody waits for it
            _fail(jobs, error)
        else:
            for job in jobs:
                job.future.set_result(index)


def _together(jobs: Sequence[_Job]) -> list[pa.RecordBatch]:
    batches = [batch for job in jobs for batch in job.batches]
    if len(jobs) == 1:
        return batches
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


def _fail(jobs: Sequence[_Job], error: BaseException) -> None:
    for job in jobs:
        job.future.set_exception(error)

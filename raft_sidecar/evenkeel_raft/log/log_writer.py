"""The thread that owns a log, with an API for an event loop.

    writer = LogWriter(log, on_full=..., on_failed=...)
    writer.start()
    writer.submit(record, done)      `done` is called on the loop when the record is durable
    await writer.write(*records)     submit and wait until all are durable
    await writer.close()

While a round is being synced, submitted records accumulate for the next one, so a slower disk makes larger rounds. On a
fast disk, passing a round to the thread and back takes about as long as its sync. Then small rounds are written on the
loop itself while the thread is idle. After several slow syncs, or a very slow one, the thread writes them again.

On a full disk submitted records are not refused, because a raft node cannot withdraw them. Records with entries wait,
in order and unacknowledged, until there is space. `on_full` is called with the error when that begins and with None
when it ends; in between the caller refuses proposals and hands leadership over. `on_failed` is called once, and the
process must then exit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from evenkeel_raft.errors import DiskFullError, LogError, LogFailedError, RecordRefusedError
from evenkeel_raft.log.log_records import Record
from evenkeel_raft.log.round_queue import Draft, Rounds, Submission
from evenkeel_raft.log.shared_log import SharedLog

__all__ = ["LogWriter", "RoundTimes"]

_QUICK_SECONDS: Final = 0.001
"""How long a round may block the loop."""
_SMALL_BYTES: Final = 64 << 10
_STALL_FACTOR: Final = 50
_SAMPLE_WEIGHT: Final = 0.1
"""The weight of the last round in the moving average."""


class RoundTimes:
    """A histogram of the seconds that rounds took to become durable; the last bucket has no bound."""

    bounds: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a round."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds


class LogWriter:
    """The event loop's side. All methods must be called on the loop."""

    def __init__(
        self,
        log: SharedLog,
        *,
        on_full: Callable[[DiskFullError | None], None],
        on_failed: Callable[[LogError], None],
        retry_seconds: float = 0.5,
        quick_seconds: float = _QUICK_SECONDS,
    ) -> None:
        """`quick_seconds`: how long a round may block the loop."""
        self._heads = log.heads
        self._on_full = on_full
        self._on_failed = on_failed
        self._error: LogError | None = None
        self._futures: set[asyncio.Future[None]] = set()
        self._submitted: list[Submission] = []
        self._in_flight = 0
        self.times = RoundTimes()
        self._worker = _Worker(log, self.times, retry_seconds=retry_seconds, quick_seconds=quick_seconds)

    def start(self) -> None:
        """Start the thread; callbacks run on the running loop."""
        loop = self._loop = asyncio.get_running_loop()
        self._ended = loop.create_future()

        def report(call: Callable[..., None], *args: object) -> None:
            # A closed loop has no listeners left.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(call, *args)

        self._worker.on_done = partial(report, self._notify_done)
        self._worker.on_dropped = partial(report, self._notify_dropped)
        self._worker.on_full = partial(report, self._on_full)
        self._worker.on_ended = partial(report, self._end)
        threading.Thread(target=self._worker.run, name="log-writer", daemon=True).start()

    def submit(
        self,
        record: Record,
        done: Callable[[], None] | None = None,
        *,
        dropped: Callable[[], None] | None = None,
    ) -> None:
        """Submit a record; `done` is called when it is durable, in order for each group.

        `dropped` is called instead if the replica is destroyed before the record is written. Raises
        `RecordRefusedError` if the record contradicts earlier ones, or the error that the log failed with.
        """
        if self._error is not None:
            raise self._error
        self._heads.admit(record)
        if not self._submitted:
            self._loop.call_soon(self.flush)
        self._submitted.append(Submission(record, done, dropped))

    def flush(self) -> None:
        """Start writing the submitted records now instead of in the next loop iteration."""
        submissions, self._submitted = self._submitted, []
        if not submissions:
            return
        # Only with nothing in flight, so that no earlier write or callback is overtaken.
        inline = self.idle and self._worker.try_inline(submissions)
        self._in_flight += len(submissions)
        if inline:
            self._notify_done(submissions)
        else:
            self._worker.put(submissions)

    @property
    def idle(self) -> bool:
        """Whether all started writes are durable and the thread is idle."""
        return not self._in_flight and self._worker.idle

    def _notify_done(self, submissions: list[Submission]) -> None:
        self._in_flight -= len(submissions)
        for submission in submissions:
            if submission.done is not None:
                submission.done()

    def _notify_dropped(self, submissions: list[Submission]) -> None:
        self._in_flight -= len(submissions)
        for submission in submissions:
            if submission.dropped is not None:
                submission.dropped()

    async def write(self, *records: Record) -> None:
        """Submit records and wait until they are durable."""
        futures = [self._submit_future(record) for record in records]
        try:
            await asyncio.gather(*futures)
        finally:
            self._futures.difference_update(futures)

    def _submit_future(self, record: Record) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done() -> None:
            if not future.done():
                future.set_result(None)

        def dropped() -> None:
            if not future.done():
                future.set_exception(RecordRefusedError("the replica was destroyed before its record was written"))

        self.submit(record, done, dropped=dropped)
        self._futures.add(future)
        return future

    async def close(self) -> None:
        """Write the submitted records that the disk has space for, and close the log."""
        self.flush()
        self._worker.put(None)
        await asyncio.shield(self._ended)

    def _end(self, error: LogError | None) -> None:
        self._error = error or LogFailedError("the log is closed")
        for future in self._futures:
            if not future.done():
                future.set_exception(self._error)
        self._ended.set_result(None)
        if error is not None:
            self._on_failed(error)


class _Worker:
    """The thread's side. The loop calls only `put`, `idle` and `try_inline`."""

    on_done: Callable[[list[Submission]], None]
    on_dropped: Callable[[list[Submission]], None]
    on_full: Callable[[DiskFullError | None], None]
    on_ended: Callable[[LogError | None], None]

    def __init__(self, log: SharedLog, times: RoundTimes, *, retry_seconds: float, quick_seconds: float) -> None:
        self._inbox: SimpleQueue[list[Submission] | None] = SimpleQueue()
        self._put = 0  # counted by the loop
        self._taken = 0  # counted by the thread
        self._waiting = False
        self._log = log
        self._times = times
        self._rounds = Rounds(log.settings.round_bytes)
        self._retry_seconds = retry_seconds
        self._retry_at = 0.0
        self._full = False
        self._closing = False
        self._more = True  # whether there is work besides the inbox
        self._quick_seconds = quick_seconds
        self._fast_share = 0.0  # the moving average share of small rounds that were fast

    def put(self, submissions: list[Submission] | None) -> None:
        """Pass submissions to the thread; None closes it."""
        self._put += 1
        self._inbox.put(submissions)

    @property
    def idle(self) -> bool:
        """Whether the thread took everything from its inbox and waits for the next `put`."""
        return self._waiting and self._taken == self._put

    def try_inline(self, submissions: list[Submission]) -> bool:
        """Write a small round on the caller's thread if the disk is fast; only while `idle`.

        On an error the thread tries again: it meets the same error and handles it.
        """
        size = sum(submission.size for submission in submissions)
        if self._fast_share < 0.5 or size > _SMALL_BYTES:
            return False
        try:
            self._log_round([submission.record for submission in submissions], size)
        except Exception:
            return False
        if self._log.needs_maintenance:
            self.put([])
        return True

    def run(self) -> None:
        """Write rounds until the writer is closed or the log fails."""
        error: LogError | None = None
        try:
            while self._receive():
                self._run_once()
        except LogError as failure:
            error = failure
        except Exception as bug:
            error = LogFailedError(f"the log writer failed; restart the process to recover from disk: {bug!r}")
            error.__cause__ = bug
        self._log.close(clean=error is None)
        self.on_ended(error)

    def _receive(self) -> bool:
        """Accept submissions, and wait for some if there is no other work; returns false when closed and done."""
        if not self._more and not self._closing:
            with suppress(Empty):
                self._accept(self._wait())
        while not self._inbox.empty():
            self._accept(self._inbox.get())
        return not self._closing or (self._more and len(self._rounds) > 0)

    def _wait(self) -> list[Submission] | None:
        if self._full:
            return self._inbox.get(timeout=self._retry_seconds)
        self._waiting = True
        submissions = self._inbox.get()
        self._waiting = False
        return submissions

    def _accept(self, submissions: list[Submission] | None) -> None:
        self._taken += 1
        self._more = True
        if submissions is None:
            self._closing = True
            return
        for submission in submissions:
            if dropped := self._rounds.add(submission):
                self.on_dropped(dropped)

    def _run_once(self) -> None:
        if self._full and time.monotonic() >= self._retry_at:
            self._check_room()
        draft = self._rounds.draft(urgent=self._full)
        if draft:
            self._write(draft)
        else:
            self._more = not self._closing and self._log.maintain()

    def _write(self, draft: Draft) -> None:
        self._more = True
        try:
            self._log_round([piece.record for piece in draft], sum(piece.size for piece in draft))
        except DiskFullError as error:
            if self._full:
                self._more = self._log.maintain()
                return
            self._full, self._retry_at = True, time.monotonic() + self._retry_seconds
            self.on_full(error)
        else:
            self.on_done(self._rounds.written(draft))

    def _log_round(self, records: list[Record], size: int) -> None:
        began = time.monotonic()
        self._log.write(records)
        took = time.monotonic() - began
        self._times.add(took)
        if size <= _SMALL_BYTES:
            self._fast_share += _SAMPLE_WEIGHT * ((took < self._quick_seconds) - self._fast_share)
            if took > _STALL_FACTOR * self._quick_seconds:
                self._fast_share = 0.0  # a stalled disk must block the thread, not the loop

    def _check_room(self) -> None:
        if self._log.has_room():
            self._full = False
            self.on_full(None)
        else:
            self._retry_at = time.monotonic() + self._retry_seconds

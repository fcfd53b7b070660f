"""The thread that owns a log, for an event loop.

    writer = LogWriter(log, on_full=..., on_failed=...)
    writer.start()
    writer.submit(record, done)      `done` is called on the loop when the record is durable
    await writer.write(*records)     the same, waiting for it
    await writer.close()

While a round is being synced, whatever is submitted gathers for the next one: a slower disk makes larger rounds. Where
the disk is so quick that handing a round to the thread and back takes about as long as its sync, small rounds are
written on the loop itself while the thread has nothing to do; some slow syncs, or a very slow one, and the thread does
it for a while.

On a full disk nothing is refused that was handed in, because a raft node cannot take back what it has handed out: what
carries entries waits, in order and unacknowledged, and goes on when there is room. `on_full` says when that begins and,
with None, when it ends; meanwhile the caller refuses proposals and hands leadership over. `on_failed` is called once,
and the process has to end.
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
_SMALL_BYTES: Final = 64 << 10
_FAR_TOO_SLOW: Final = 50
_NEWS: Final = 0.1
"""What the last round counts for among those before it."""


class RoundTimes:
    """How long rounds took to become durable: how many of them up to each bound, the last being none, and in all."""

    bounds: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a round."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds


class LogWriter:
    """The event loop's side. All methods belong to the loop."""

    def __init__(
        self,
        log: SharedLog,
        *,
        on_full: Callable[[DiskFullError | None], None],
        on_failed: Callable[[LogError], None],
        retry_seconds: float = 0.5,
        quick_seconds: float = _QUICK_SECONDS,
    ) -> None:
        """`quick_seconds`: what the loop may be held up for by a round."""
        self._heads = log.heads
        self._on_full = on_full
        self._on_failed = on_failed
        self._error: LogError | None = None
        self._futures: set[asyncio.Future[None]] = set()
        self._handed_in: list[Submission] = []
        self._under_way = 0
        self.times = RoundTimes()
        self._worker = _Worker(log, self.times, retry_seconds=retry_seconds, quick_seconds=quick_seconds)

    def start(self) -> None:
        """Begin to write; what there is to tell arrives on the running loop."""
        loop = self._loop = asyncio.get_running_loop()
        self._ended = loop.create_future()

        def report(call: Callable[..., None], *args: object) -> None:
            # A loop that is closed has nobody left to tell.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(call, *args)

        self._worker.on_done = partial(report, self._tell_done)
        self._worker.on_dropped = partial(report, self._tell_dropped)
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
        """Hand in a record; `done` is called when it is durable, in order for each group.

        `dropped` is called instead if the end of its replica overtook it. Raises `RecordRefusedError` if the record
        cannot follow what was handed in before, or the error the log failed with.
        """
        if self._error is not None:
            raise self._error
        self._heads.admit(record)
        if not self._handed_in:
            self._loop.call_soon(self.flush)
        self._handed_in.append(Submission(record, done, dropped))

    def flush(self) -> None:
        """Begin with what was handed in, which otherwise happens after this turn of the loop."""
        submissions, self._handed_in = self._handed_in, []
        if not submissions:
            return
        # With nothing under way, neither the disk nor a callback can be overtaken.
        at_once = self.idle and self._worker.try_at_once(submissions)
        self._under_way += len(submissions)
        if at_once:
            self._tell_done(submissions)
        else:
            self._worker.put(submissions)

    @property
    def idle(self) -> bool:
        """Whether everything that was begun is durable, and the thread has nothing to do."""
        return not self._under_way and self._worker.idle

    def _tell_done(self, submissions: list[Submission]) -> None:
        self._under_way -= len(submissions)
        for submission in submissions:
            if submission.done is not None:
                submission.done()

    def _tell_dropped(self, submissions: list[Submission]) -> None:
        self._under_way -= len(submissions)
        for submission in submissions:
            if submission.dropped is not None:
                submission.dropped()

    async def write(self, *records: Record) -> None:
        """Hand in records and wait until they are durable."""
        futures = [self._submitted(record) for record in records]
        try:
            await asyncio.gather(*futures)
        finally:
            self._futures.difference_update(futures)

    def _submitted(self, record: Record) -> asyncio.Future[None]:
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
        """Write what was handed in, as far as there is room, and let go of the log."""
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
    """The thread's side; what the loop may call comes first."""

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
        self._more = True  # whether there is something to do without being told
        self._quick_seconds = quick_seconds
        self._quick = 0.0  # the part of small rounds that was written quickly

    def put(self, submissions: list[Submission] | None) -> None:
        """Give the thread something to do; None is the last."""
        self._put += 1
        self._inbox.put(submissions)

    @property
    def idle(self) -> bool:
        """Whether the thread touches nothing until the next `put`: it has taken everything, and waits since then."""
        return self._waiting and self._taken == self._put

    def try_at_once(self, submissions: list[Submission]) -> bool:
        """Write a small round on the caller's thread, if the disk is quick; only while `idle`.

        If something goes wrong, the thread is to try as well: it finds the same, and knows what to do.
        """
        size = sum(submission.size for submission in submissions)
        if self._quick < 0.5 or size > _SMALL_BYTES:
            return False
        try:
            self._log_round([submission.record for submission in submissions], size)
        except Exception:
            return False
        if self._log.untidy:
            self.put([])
        return True

    def run(self) -> None:
        """Work until told to close, or until the disk fails."""
        error: LogError | None = None
        try:
            while self._receive():
                self._turn()
        except LogError as failure:
            error = failure
        except Exception as bug:
            error = LogFailedError(f"the log's writer failed, end this process and recover: {bug!r}")
            error.__cause__ = bug
        self._log.close(clean=error is None)
        self.on_ended(error)

    def _receive(self) -> bool:
        """Take in what was submitted, waiting for it if there is nothing else to do; false when all is done."""
        if not self._more and not self._closing:
            with suppress(Empty):
                self._take_in(self._wait())
        while not self._inbox.empty():
            self._take_in(self._inbox.get())
        return not self._closing or (self._more and len(self._rounds) > 0)

    def _wait(self) -> list[Submission] | None:
        if self._full:
            return self._inbox.get(timeout=self._retry_seconds)
        self._waiting = True
        submissions = self._inbox.get()
        self._waiting = False
        return submissions

    def _take_in(self, submissions: list[Submission] | None) -> None:
        self._taken += 1
        self._more = True
        if submissions is None:
            self._closing = True
            return
        for submission in submissions:
            if dropped := self._rounds.add(submission):
                self.on_dropped(dropped)

    def _turn(self) -> None:
        if self._full and time.monotonic() >= self._retry_at:
            self._look_for_room()
        draft = self._rounds.draft(urgent=self._full)
        if draft:
            self._write(draft)
        else:
            self._more = not self._closing and self._log.tidy()

    def _write(self, draft: Draft) -> None:
        self._more = True
        try:
            self._log_round([piece.record for piece in draft], sum(piece.size for piece in draft))
        except DiskFullError as error:
            if self._full:
                self._more = self._log.tidy()
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
            self._quick += _NEWS * ((took < self._quick_seconds) - self._quick)
            if took > _FAR_TOO_SLOW * self._quick_seconds:
                self._quick = 0.0  # a disk that hangs is to hang the thread

    def _look_for_room(self) -> None:
        if self._log.has_room():
            self._full = False
            self.on_full(None)
        else:
            self._retry_at = time.monotonic() + self._retry_seconds

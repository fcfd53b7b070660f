"""The log writer."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator

import pytest

from evenkeel_raft.core.raft_types import HardState
from evenkeel_raft.errors import DiskFullError, LogError, LogFailedError, RecordRefusedError
from evenkeel_raft.log import log_writer
from evenkeel_raft.log.log_records import Created, Destroyed, Metastore
from evenkeel_raft.log.log_writer import LogWriter
from evenkeel_raft.log.shared_log import LogSettings, SharedLog
from tests.raft_log.sim import SimDisk
from tests.raft_log.support import append, compacted, indexes, open_log, state

SEGMENT = 16 << 10
SETTINGS = LogSettings(segment_bytes=SEGMENT, round_bytes=4 << 10)


class Sidecar:
    """A writer, and its callbacks' calls."""

    def __init__(self, disk: SimDisk, *, quick_seconds: float = 0.0) -> None:
        self.disk = disk
        self.full: asyncio.Queue[DiskFullError | None] = asyncio.Queue()
        self.failed: asyncio.Queue[LogError] = asyncio.Queue()
        self.log, self.found = open_log(disk, SETTINGS)
        self.writer = LogWriter(
            self.log,
            on_full=self.full.put_nowait,
            on_failed=self.failed.put_nowait,
            retry_seconds=0.01,
            quick_seconds=quick_seconds,
        )
        self.writer.start()

    async def settle(self) -> None:
        """Let the writer measure the disk's speed."""
        for revision in range(20):
            await self.writer.write(Metastore(1, revision))
        await self.rest()

    async def rest(self) -> None:
        """Wait until the thread is idle."""
        async with asyncio.timeout(20):
            while not self.writer.idle:  # noqa: ASYNC110 - a thread cannot notify the loop here
                await asyncio.sleep(0)


class SlowDisk(SimDisk):
    """A disk that syncs only when allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.syncing = threading.Event()
        self.let = threading.Event()

    def sync(self, name: str) -> None:
        self.syncing.set()
        assert self.let.wait(10)
        super().sync(name)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture(params=[0.0, 60.0], ids=["on the thread", "on the loop"])
async def sidecar(disk: SimDisk, request: pytest.FixtureRequest) -> AsyncIterator[Sidecar]:
    sidecar = Sidecar(disk, quick_seconds=request.param)
    await sidecar.settle()
    yield sidecar
    await sidecar.writer.close()


async def test_written_is_durable(sidecar: Sidecar, disk: SimDisk) -> None:
    """Callbacks run when records are durable, and closing writes everything first."""
    writer = sidecar.writer
    await writer.write(Created(1, 1, 0), append(1, 1, 3), Metastore(1, 2))
    writer.submit(append(1, 4, 5))
    await writer.close()
    found = open_log(disk, SETTINGS)[1]
    assert (indexes(found, 1), found.metastore) == ([1, 2, 3, 4, 5], Metastore(1, 2))
    with pytest.raises(LogFailedError, match="closed"):
        writer.submit(append(1, 6, 6))


async def test_what_arrives_during_a_sync_shares_the_next_one() -> None:
    """A thousand records of a hundred groups take two rounds."""
    disk = SlowDisk()
    disk.let.set()
    sidecar = Sidecar(disk)
    writer = sidecar.writer
    await writer.write(*[Created(group, 1, 0) for group in range(100)])
    disk.let.clear()
    disk.syncing.clear()
    done: list[int] = []
    writer.submit(append(0, 1, 1), lambda: done.append(0))
    await asyncio.to_thread(disk.syncing.wait)
    before = sidecar.log.stats().rounds
    for index in range(1, 11):
        for group in range(1, 100):
            writer.submit(append(group, index, index, size=1), lambda index=index: done.append(index))  # type: ignore[misc]
    disk.let.set()
    await writer.close()
    assert done[0] == 0
    assert [index for index in done[1:] if index == 10] == [10] * 99
    # The first round, about 70 kB in rounds of 4 kB, and the one that closes.
    assert sidecar.log.stats().rounds - before < 30


async def test_a_bad_record_is_refused_at_once(sidecar: Sidecar) -> None:
    """An invalid record raises at `submit`, and the log continues."""
    await sidecar.writer.write(Created(1, 1, 0))
    with pytest.raises(RecordRefusedError, match="entry 7 does not fit"):
        sidecar.writer.submit(append(1, 7, 7))
    await sidecar.writer.write(append(1, 1, 1))


async def test_a_full_disk_is_waited_for(sidecar: Sidecar, disk: SimDisk) -> None:
    """On a full disk entries wait unacknowledged, votes are written, and everything is written later."""
    writer = sidecar.writer
    await writer.write(Created(1, 1, 0), Created(2, 1, 0))
    disk.capacity = 8 * SEGMENT
    done: list[int] = []
    for index in range(1, 200):
        writer.submit(append(1, index, index, size=1000), lambda index=index: done.append(index))  # type: ignore[misc]
    assert isinstance(await sidecar.full.get(), DiskFullError)
    await writer.write(state(2, HardState(4, 1, 0)))
    written = len(done)
    assert 0 < written < 199
    assert done == list(range(1, written + 1))
    await writer.write(compacted(1, written // 2))
    disk.capacity *= 10
    assert await sidecar.full.get() is None
    await writer.write(state(1, HardState(1, 0, 0)))
    assert done == list(range(1, 200))
    await writer.close()
    assert indexes(open_log(disk, SETTINGS)[1], 1) == list(range(written // 2 + 1, 200))


async def test_compaction_ends_a_full_disk(sidecar: Sidecar, disk: SimDisk) -> None:
    """Compaction alone can end a full disk."""
    writer = sidecar.writer
    await writer.write(Created(1, 1, 0), Created(2, 1, 0))
    disk.capacity = 7 * SEGMENT
    done: list[int] = []
    for index in range(1, 120):
        writer.submit(append(1, index, index, size=1000), lambda index=index: done.append(index))  # type: ignore[misc]
    last = asyncio.ensure_future(writer.write(state(1, HardState(1, 0, 0))))
    times = 0
    while not last.done():
        said = asyncio.ensure_future(sidecar.full.get())
        await asyncio.wait([last, said], return_when=asyncio.FIRST_COMPLETED)
        if said.done() and said.result() is not None:
            times += 1
            writer.submit(compacted(1, done[-1]))
        said.cancel()
    assert times > 1
    assert done == list(range(1, 120))


async def test_closing_a_full_log_does_not_wait(sidecar: Sidecar, disk: SimDisk) -> None:
    """Closing on a full disk drops only unacknowledged records."""
    writer = sidecar.writer
    await writer.write(Created(1, 1, 0))
    disk.capacity = disk.used()
    for index in range(1, 200):
        writer.submit(append(1, index, index, size=1000))
    await sidecar.full.get()
    await writer.close()
    found = indexes(open_log(disk, SETTINGS)[1], 1)
    assert found == list(range(1, len(found) + 1))


async def test_the_end_of_a_replica_overtakes_what_waits(sidecar: Sidecar, disk: SimDisk) -> None:
    """A waiting `write` raises when its replica is destroyed."""
    writer = sidecar.writer
    await writer.write(Created(1, 1, 0))
    disk.capacity = disk.used()
    waiting = asyncio.ensure_future(writer.write(append(1, 1, 1, size=3 * SEGMENT)))
    await sidecar.full.get()
    await writer.write(Destroyed(1, 1))
    with pytest.raises(RecordRefusedError, match="destroyed before"):
        await waiting
    await writer.close()
    assert open_log(disk, SETTINGS)[1].retired == {1: 1}


async def test_a_failed_disk_ends_everything(sidecar: Sidecar, disk: SimDisk) -> None:
    """Waiting and later callers get the same error, and `on_failed` is called once."""
    writer = sidecar.writer
    await writer.write(Created(1, 1, 0))

    def before(operation: str, _name: str) -> None:
        if operation == "sync":
            raise OSError(errno.EIO, "the disk is dying")

    disk.before = before
    with pytest.raises(LogFailedError, match="the disk is dying") as caught:
        await writer.write(append(1, 1, 1))
    with pytest.raises(LogFailedError) as again:
        writer.submit(append(1, 2, 2))
    assert caught.value is again.value is await sidecar.failed.get()
    assert sidecar.failed.empty()
    await writer.close()


async def test_a_quick_disk_is_written_inline(disk: SimDisk) -> None:
    """On a fast disk small rounds are written on the loop, large ones by the thread."""
    sidecar = Sidecar(disk, quick_seconds=60.0)
    await sidecar.settle()
    writer, done = sidecar.writer, list[int]()
    await writer.write(Created(1, 1, 0))
    await sidecar.rest()
    writer.submit(append(1, 1, 1), lambda: done.append(1))
    assert not done
    writer.flush()
    assert done == [1]
    writer.submit(append(1, 2, 2, size=100_000), lambda: done.append(2))
    writer.flush()
    writer.submit(append(1, 3, 3), lambda: done.append(3))
    writer.flush()
    assert done == [1]
    await writer.close()
    assert done == [1, 2, 3]
    assert indexes(open_log(disk, SETTINGS)[1], 1) == [1, 2, 3]


async def test_nothing_is_overtaken_by_inline_rounds(disk: SimDisk) -> None:
    """While the thread's completions are outstanding, further rounds go to the thread."""
    sidecar = Sidecar(disk, quick_seconds=60.0)
    await sidecar.settle()
    writer, done = sidecar.writer, list[int]()
    await writer.write(Created(1, 1, 0))
    await sidecar.rest()
    synced = threading.Event()
    disk.before = lambda operation, _name: synced.set() if operation == "sync" else None
    writer.submit(append(1, 1, 1, size=100_000), lambda: done.append(1))
    writer.flush()
    # The loop does not run in between, so it receives no callback.
    assert synced.wait(10)
    writer.submit(append(1, 2, 2), lambda: done.append(2))
    writer.flush()
    assert done == []
    await writer.close()
    assert done == [1, 2]


async def test_thread_and_loop_never_write_at_the_same_time(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the thread has work, the loop does not touch the log, even before the thread wakes."""
    sidecar = Sidecar(disk, quick_seconds=60.0)
    await sidecar.settle()
    writer, loops, maintained = sidecar.writer, threading.current_thread(), threading.Event()
    maintainers: list[threading.Thread] = []

    def maintain() -> bool:
        maintainers.append(threading.current_thread())
        maintained.set()
        return False

    def before(operation: str, _name: str) -> None:
        if operation == "sync" and threading.current_thread() is loops:
            assert not maintained.wait(0.05)

    monkeypatch.setattr(SharedLog, "needs_maintenance", True)
    monkeypatch.setattr(sidecar.log, "maintain", maintain)
    disk.before = before
    for revision in range(20):
        maintained.clear()
        for number in range(5):
            writer.submit(Metastore(2 + number, revision))
            writer.flush()
        await sidecar.rest()
    await writer.close()
    assert sidecar.failed.empty()
    assert maintainers


async def test_a_slow_disk_is_left_to_the_thread(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a few slow rounds block the loop."""
    sidecar = Sidecar(disk, quick_seconds=0.001)
    clock = Clock()
    monkeypatch.setattr(log_writer, "time", clock)
    await sidecar.settle()
    writer, inline = sidecar.writer, 0
    clock.step = 0.01
    for revision in range(100):
        done = list[int]()
        writer.submit(Metastore(2, revision), lambda done=done: done.append(1))  # type: ignore[misc]
        writer.flush()
        inline += len(done)
        await sidecar.rest()
    assert 1 <= inline < 10
    await writer.close()


async def test_one_very_slow_round_is_enough(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that begins to stall blocks the loop once."""
    sidecar = Sidecar(disk, quick_seconds=0.001)
    clock = Clock()
    monkeypatch.setattr(log_writer, "time", clock)
    await sidecar.settle()
    writer, inline = sidecar.writer, list[int]()
    clock.step = 1.0
    for revision in range(5):
        writer.submit(Metastore(2, revision), lambda revision=revision: inline.append(revision))  # type: ignore[misc]
        writer.flush()
        seen = list(inline)
        await sidecar.rest()
        assert seen == [0, *range(1, revision)] if revision else seen == [0]
    await writer.close()


class Clock:
    """A clock that advances equally at each call."""

    def __init__(self) -> None:
        self.now = self.step = 0.0

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


async def test_a_bug_ends_everything_too(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the writer fails the log instead of leaving callers waiting."""
    monkeypatch.setattr(sidecar.log, "write", lambda _records: 1 // 0)
    with pytest.raises(LogFailedError, match="ZeroDivisionError"):
        await sidecar.writer.write(Created(1, 1, 0))

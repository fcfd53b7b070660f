"""The shared log, compared with plain files on the same disk in the same run.

The references are preallocated, zeroed files with one write and one fdatasync each. The windows of both sides
alternate, and medians are compared.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.report import Row
from evenkeel_raft.core.raft_types import Conf, Entry, HardState, SnapshotMeta
from evenkeel_raft.log.log_disk import FileDisk
from evenkeel_raft.log.log_records import Append, Compacted, Created, Record
from evenkeel_raft.log.shared_log import SharedLog

__all__ = ["log_rows"]

WINDOWS = 5
SECONDS = 0.5
SMALL = 100
LARGE = 64 << 10
KEPT = 4
CONF = Conf(voters=(1, 2, 3))
RECOVERED_GROUPS = 10_000
RECOVERED_BYTES = 96 << 20


def log_rows() -> Iterator[Row]:
    """Yield rows for groups that share a log, large entries, and recovery."""
    for groups in (1, 10, 100):
        with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
            yield _sharing(Path(directory), groups)
    for entries in (1, 16, 32, 64):
        with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
            yield _large_entries(Path(directory), entries)
    for size in (SMALL, LARGE):
        with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
            yield from _recovery(Path(directory), size)


class _Groups:
    """Groups that append to one log in rounds."""

    def __init__(self, directory: Path, groups: int, *, size: int) -> None:
        self.log, _ = SharedLog.open(FileDisk(directory / "log"))
        self._groups = range(groups)
        self._data = os.urandom(size)
        self._index = 0
        self._write([Created(group, 1, 0) for group in self._groups])
        while self.log.maintain():
            pass

    def _write(self, records: list[Record]) -> None:
        for record in records:
            self.log.heads.admit(record)
        self.log.write(records)

    def round(self) -> None:
        """Append one entry to every group, commit the previous one, and compact."""
        self._index += 1
        index, data = self._index, self._data
        state = HardState(1, 1, index - 1)
        records: list[Record] = [Append(group, 1, 0, None, [Entry(index, 1, 0, data)], state) for group in self._groups]
        if index % KEPT == 0:
            meta = SnapshotMeta(index - KEPT + 1, 1, CONF)
            records += [Compacted(group, 1, 0, meta) for group in self._groups]
        self._write(records)


class _Files:
    """Files that are written and synced one by one."""

    def __init__(self, directory: Path, files: int, *, size: int, length: int) -> None:
        self._data, self._length, self._offset = os.urandom(size), length, 0
        self._files = [os.open(directory / f"file-{number}", os.O_RDWR | os.O_CREAT) for number in range(files)]
        for file in self._files:
            os.write(file, bytes(length))
            os.fsync(file)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_error: object) -> None:
        for file in self._files:
            os.close(file)

    def round(self) -> None:
        if self._offset + len(self._data) > self._length:
            self._offset = 0
        for file in self._files:
            os.pwrite(file, self._data, self._offset)
            os.fdatasync(file)
        self._offset += len(self._data)


def _rate(action: Callable[[], None]) -> float:
    """Return how often per second the action completes, from at least three runs."""
    began = time.perf_counter()
    done = 0
    while done < 3 or time.perf_counter() - began < SECONDS:
        action()
        done += 1
    return done / (time.perf_counter() - began)


def _side_by_side(ours: Callable[[], None], theirs: Callable[[], None]) -> tuple[float, float]:
    pairs = [(_rate(ours), _rate(theirs)) for _ in range(WINDOWS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def _sharing(directory: Path, groups: int) -> Row:
    with ExitStack() as stack:
        shared = _Groups(directory, groups, size=SMALL)
        stack.callback(shared.log.close)
        files = stack.enter_context(_Files(directory, groups, size=SMALL + 40, length=1 << 20))
        ours, theirs = _side_by_side(shared.round, files.round)
    return Row("raft", f"{groups} groups in one log vs one file each", ours, "rounds/s", theirs, ours / theirs)


def _large_entries(directory: Path, groups: int) -> Row:
    with ExitStack() as stack:
        shared = _Groups(directory, groups, size=LARGE)
        stack.callback(shared.log.close)
        # Fill until the log reuses its files, which is its steady state.
        while shared.log.stats().rounds * groups * LARGE < 6 * shared.log.settings.segment_bytes:
            shared.round()
        files = stack.enter_context(_Files(directory, 1, size=groups * LARGE, length=32 << 20))
        ours, theirs = _side_by_side(shared.round, files.round)
    scale = groups * LARGE / 1e6
    case = f"log of {groups} x 64 KiB entries per fsync, vs plain writes"
    return Row("raft", case, ours * scale, "MB/s", theirs * scale, ours / theirs)


class _Unsynced(FileDisk):
    """A disk without syncs, to write the log to recover quickly."""

    def sync(self, name: str) -> None:
        pass


def _recovery(directory: Path, size: int) -> Iterator[Row]:
    """Open a log with only live entries: appends of one entry each, round-robin over many groups."""
    log, _ = SharedLog.open(_Unsynced(directory))
    groups = min(RECOVERED_GROUPS, RECOVERED_BYTES // size // 100 * 100)
    log.write([Created(group, 1, 0) for group in range(groups)])
    data, records = os.urandom(size), 0
    for index in range(1, RECOVERED_BYTES // size // groups + 1):
        entries, state = [Entry(index, 1, 0, data)], HardState(1, 1, index - 1)
        for first in range(0, groups, 100):
            log.write([Append(group, 1, 0, None, entries, state) for group in range(first, first + 100)])
            records += 100
    log.close()
    began = time.perf_counter()
    log, found = SharedLog.open(_Unsynced(directory))
    seconds = time.perf_counter() - began
    assert sum(len(group.entries) for group in found.groups.values()) == records
    live = log.stats().live_bytes / 1e6
    log.close()
    case = f"recover {groups:,} groups, {records:,} entries of {size:,} bytes"
    yield Row("raft", case, live / seconds, "MB/s")
    yield Row("raft", case, records / seconds, "records/s")

"""A full disk is retried; a failed disk is final."""

from __future__ import annotations

import errno

import pytest

from evenkeel_raft.core.raft_types import HardState
from evenkeel_raft.errors import DiskFullError, LogFailedError
from evenkeel_raft.log.log_records import Created, Destroyed
from evenkeel_raft.log.shared_log import LogSettings, SharedLog
from tests.raft_log.sim import SimDisk
from tests.raft_log.support import append, compacted, indexes, open_log, state, write

SEGMENT = 16 << 10
SETTINGS = LogSettings(segment_bytes=SEGMENT, round_bytes=4 << 10)


def failing(disk: SimDisk, operation: str, code: int) -> None:
    def before(what: str, _name: str) -> None:
        if what == operation:
            raise OSError(code, "simulated")

    disk.before = before


def fill(log: SharedLog, group: int, *, first: int = 1) -> int:
    """Append until the disk is full; returns the last durable index."""
    for index in range(first, first + 10_000):
        try:
            log.write([append(group, index, index, size=1000)])
        except DiskFullError:
            return index - 1
    raise AssertionError("the disk was never full")


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(capacity=10 * SEGMENT)


@pytest.fixture
def log(disk: SimDisk) -> SharedLog:
    log, _ = open_log(disk, SETTINGS)
    write(log, Created(1, 1, 0))
    return log


def test_a_full_disk_refuses_entries_and_loses_nothing(log: SharedLog, disk: SimDisk) -> None:
    """A refused round leaves no trace; acknowledged ones stay."""
    last = fill(log, 1)
    assert last > 4 * SEGMENT // 1000
    for _ in range(3):
        with pytest.raises(DiskFullError):
            log.write([append(1, last + 1, last + 1, size=1000)])
    assert indexes(open_log(disk, SETTINGS)[1], 1) == list(range(1, last + 1))


def test_terms_votes_and_compaction_still_fit(log: SharedLog, disk: SimDisk) -> None:
    """Many records without entries fit into the reserve."""
    last = fill(log, 1)
    for term in range(1, 150):
        log.write([state(1, HardState(term, 2, 0))])
    log.write([compacted(1, 1)])
    found = open_log(disk, SETTINGS)[1].groups[1]
    assert (found.hard_state, found.meta.index, found.entries[-1].index) == (HardState(149, 2, 0), 1, last)


def test_small_records_do_not_let_entries_into_the_reserve(log: SharedLog) -> None:
    """Entries never use the reserve, even when the current segment has room."""
    last = fill(log, 1)
    for term in range(1, 100):
        log.write([state(1, HardState(term, 2, 0))])
        with pytest.raises(DiskFullError):
            log.write([append(1, last + 1, last + 1, size=1000)])


def test_small_records_never_fill_the_disk_for_good(log: SharedLog) -> None:
    """Records without entries use up their reserve and regain it by collecting."""
    fill(log, 1)
    for term in range(1, 3000):
        try:
            log.write([state(1, HardState(term, 2, 0))])
        except DiskFullError:
            while log.maintain():
                pass
            log.write([state(1, HardState(term, 2, 0))])
    assert log.stats().moved_bytes > 0


def test_compaction_makes_room(log: SharedLog, disk: SimDisk) -> None:
    """The log collects within its space and continues."""
    last = fill(log, 1)
    assert not log.has_room()
    log.write([compacted(1, last)])
    while log.maintain():
        pass
    assert log.has_room()
    log.write([append(1, last + 1, last + 20, size=1000)])
    assert indexes(open_log(disk, SETTINGS)[1], 1) == list(range(last + 1, last + 21))


def test_destroying_makes_room(log: SharedLog) -> None:
    """Destroying a replica frees space."""
    last = fill(log, 1)
    log.write([Destroyed(1, 1)])
    while log.maintain():
        pass
    log.write([Created(1, 2, 0), append(1, 1, last // 2, replica=2, size=1000)])


def test_live_entries_are_not_copied_endlessly(log: SharedLog) -> None:
    """A log full of live entries does not copy them endlessly."""
    fill(log, 1)
    moved = log.stats().moved_bytes
    for _ in range(50):
        assert not log.maintain()
    assert log.stats().moved_bytes == moved


def test_space_that_returns_is_used(log: SharedLog, disk: SimDisk) -> None:
    """The log continues after space is freed, without a restart."""
    last = fill(log, 1)
    disk.capacity *= 2
    assert log.has_room()
    log.write([append(1, last + 1, last + 1, size=1000)])
    assert fill(log, 1, first=last + 2) > 1.5 * last


def test_a_full_disk_is_recovered_from(log: SharedLog, disk: SimDisk) -> None:
    """A restart needs no extra space."""
    last = fill(log, 1)
    log, found = open_log(disk, SETTINGS)
    assert indexes(found, 1) == list(range(1, last + 1))
    with pytest.raises(DiskFullError):
        write(log, append(1, last + 1, last + 20, size=1000))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_enospc_in_an_allocated_file(log: SharedLog, disk: SimDisk, code: int) -> None:
    """ENOSPC in an allocated file is a full disk too; the round is later written to the same place."""
    write(log, append(1, 1, 1))
    for size in (100, SEGMENT - 5000, 2 * SEGMENT):
        last = indexes(open_log(disk, SETTINGS)[1], 1)[-1]
        failing(disk, "write", code)
        with pytest.raises(DiskFullError):
            log.write([append(1, last + 1, last + 1, size=size)])
        disk.before = lambda _operation, _name: None
        log.write([append(1, last + 1, last + 1, size=7)])
        assert indexes(open_log(disk, SETTINGS)[1], 1) == list(range(1, last + 2))


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_disk_is_final(log: SharedLog, disk: SimDisk, operation: str) -> None:
    """Every later write fails with the same error, even if the disk works again."""
    failing(disk, operation, errno.EIO)
    with pytest.raises(LogFailedError, match="restart the process to recover") as caught:
        write(log, append(1, 1, 1))
    disk.before = lambda _operation, _name: None
    operations = disk.operations
    for attempt in (lambda: log.write([]), log.maintain, log.has_room):
        with pytest.raises(LogFailedError) as again:
            attempt()
        assert again.value is caught.value
    log.close()
    assert disk.operations == operations


def test_a_bug_is_final(log: SharedLog) -> None:
    """A record that was never admitted is detected after it is durable; the log then stops."""
    with pytest.raises(LogFailedError, match="KeyError"):
        log.write([append(9, 1, 1)])
    with pytest.raises(LogFailedError, match="KeyError"):
        log.write([append(1, 1, 1)])


def test_no_room_at_sync_is_final(log: SharedLog, disk: SimDisk) -> None:
    """A failed fsync is final for any reason, because the kernel dropped the pages."""
    failing(disk, "sync", errno.ENOSPC)
    with pytest.raises(LogFailedError):
        write(log, append(1, 1, 1))


def test_an_entry_larger_than_a_segment(log: SharedLog, disk: SimDisk) -> None:
    """A large round gets its own file, which is deleted afterwards."""
    write(log, append(1, 1, 1, size=3 * SEGMENT))
    write(log, append(1, 2, 3))
    assert indexes(open_log(disk, SETTINGS)[1], 1) == [1, 2, 3]
    write(log, compacted(1, 3))
    while log.maintain():
        pass
    for term in range(1, 2000):
        log.write([state(1, HardState(term, 2, 0))])
    assert {disk.size(name) for name in disk.names() if name.endswith(".log")} == {SEGMENT}

"""Garbage collection bounds disk use by the live bytes."""

from __future__ import annotations

from random import Random

import pytest

from evenkeel_raft.core.raft_types import HardState
from evenkeel_raft.errors import CorruptLogError, LogFailedError
from evenkeel_raft.log.entry_extents import Extents
from evenkeel_raft.log.log_frames import HEADER_BYTES
from evenkeel_raft.log.log_records import Created, Destroyed, Metastore, Record
from evenkeel_raft.log.shared_log import LogSettings, SharedLog
from tests.raft_log.model import Model, Writer
from tests.raft_log.sim import SimDisk
from tests.raft_log.support import append, compacted, installed, open_log, state, write

SEGMENT = 16 << 10
SETTINGS = LogSettings(segment_bytes=SEGMENT, round_bytes=4 << 10)


def bound(live: int) -> float:
    return 2.5 * live + 10 * SEGMENT


def steady(log: SharedLog, group: int, *, rounds: int, disk: SimDisk, first: int = 1, keep: int = 5) -> None:
    """Append and compact, and return the disk's peak use."""
    for index in range(first, first + rounds):
        write(log, append(group, index, index, size=300))
        if index > keep:
            write(log, compacted(group, index - keep))
        assert disk.used() <= bound(log.stats().live_bytes), (index, log.stats())


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> SharedLog:
    return open_log(disk, SETTINGS)[0]


def test_steady_writes(log: SharedLog, disk: SimDisk) -> None:
    """A group that compacts regularly needs a few segments only."""
    write(log, Created(1, 1, 0))
    steady(log, 1, rounds=1500, disk=disk)
    assert disk.written > 8 * disk.used()


def test_a_log_that_grows_and_shrinks_reuses_its_files(log: SharedLog, disk: SimDisk) -> None:
    """A log that grows and shrinks by a few segments reuses its files."""

    def breathe(first: int) -> None:
        for index in range(first, first + 100):
            write(log, append(1, index, index, size=300))
            log.maintain()
        write(log, compacted(1, first + 95))
        while log.maintain():
            pass

    write(log, Created(1, 1, 0))
    for breath in range(5):
        breathe(1 + 100 * breath)
    made: list[str] = []
    disk.before = lambda operation, _: made.append(operation)
    for breath in range(5, 15):
        breathe(1 + 100 * breath)
    assert not {"allocate", "delete"} & set(made)
    assert disk.used() <= bound(log.stats().live_bytes)


def test_idle_groups_do_not_pin_segments(log: SharedLog, disk: SimDisk) -> None:
    """Live records of idle groups are copied forward, and none is lost."""
    model = Model()
    idle: list[Record] = [
        record
        for group in range(2, 40)
        for record in (
            Created(group, group, 0, b"idle"),
            installed(group, 100, replica=group),
            append(group, 101, 103, replica=group, hard_state=HardState(4, 1, 102)),
        )
    ]
    gone: list[Record] = [Created(50, 8, 0), Destroyed(50, 8), Metastore(3, 17)]
    for record in [*idle, *gone]:
        write(log, record)
        model.apply(record)
    write(log, Created(1, 1, 0))
    steady(log, 1, rounds=600, disk=disk)
    assert log.stats().moved_bytes > 0
    found = open_log(disk, SETTINGS)[1]
    del found.groups[1]
    assert model.equals(found)


def test_long_lived_bytes_cost_about_one_copy_per_byte_written(log: SharedLog, disk: SimDisk) -> None:
    """With many live bytes and steady writes, copying stays proportional."""
    write(log, Created(1, 1, 0), Created(2, 1, 0))
    for index in range(1, 400):
        write(log, append(2, index, index, size=500))
    assert log.stats().live_bytes > 10 * SEGMENT
    before = disk.written
    steady(log, 1, rounds=1500, disk=disk)
    moved = log.stats().moved_bytes
    assert moved > 5 * SEGMENT
    assert moved < 0.6 * (disk.written - before)


def test_files_are_given_back(log: SharedLog, disk: SimDisk) -> None:
    """A long log shrinks without further writes once its records are dead."""
    for group in range(1, 30):
        write(log, Created(group, 1, 0))
        for index in range(1, 30):
            write(log, append(group, index, index, size=400))
    long = disk.used()
    for group in range(1, 30):
        write(log, Destroyed(group, 1))
    while log.maintain():
        pass
    assert long > 20 * SEGMENT
    assert disk.used() <= bound(log.stats().live_bytes)
    assert len(open_log(disk, SETTINGS)[1].retired) == 29


def test_dead_segments_are_freed_unread(log: SharedLog, disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds without live records are not read back."""
    write(log, Created(1, 1, 0))
    reads: list[str] = []
    original = disk.read

    def read(name: str, offset: int, size: int) -> bytes:
        reads.append(name)
        return original(name, offset, size)

    monkeypatch.setattr(disk, "read", read)
    for index in range(1, 600):
        write(log, append(1, index, index, size=300), state(1, HardState(index, 0, 0)), compacted(1, index))
    # Only the record that creates the replica is copied on every pass over the log.
    assert len(reads) < log.stats().rounds / 20


def test_live_bytes_are_found_again(disk: SimDisk) -> None:
    """After a restart the index has about the same counts and the same live rounds."""
    log, _ = open_log(disk, SETTINGS)
    writer = Writer(Random(2), groups=6)
    for _ in range(300):
        write(log, *writer.round())
    again, _ = open_log(disk, SETTINGS)
    assert again.stats().live_bytes == pytest.approx(log.stats().live_bytes, rel=0.3)
    for one, other in zip(log._index.segments, again._index.segments, strict=True):
        rounds = range(one.first_round, one.next_round)
        assert [bool(one.live_in(round_)) for round_ in rounds] == [bool(other.live_in(round_)) for round_ in rounds]


def test_live_bytes_are_subtracted_exactly(log: SharedLog) -> None:
    """All counted bytes are subtracted again."""
    rng = Random(4)
    writer = Writer(rng, groups=5)
    for _ in range(400):
        write(log, *writer.round())
    for number, group in list(writer.model.groups.items()):
        write(log, Destroyed(number, group.replica))
    for number, replica in {**writer.model.retired, **{n: g.replica for n, g in writer.model.groups.items()}}.items():
        write(log, Created(number, replica + 1, 0))
    index = log._index
    assert index.live == sum(segment.live for segment in index.segments)
    assert index.live == index.metastore.size + sum(group.identity.size for group in index.groups.values())


def collect_all(log: SharedLog, disk: SimDisk, *, first: int = 1) -> None:
    """Append to another group until every present segment is freed."""
    newest = log._index.segments[-1].number
    steady(log, 9, rounds=800, disk=disk, first=first, keep=0)
    assert log._index.segments[0].number > newest


def test_what_a_later_append_of_the_round_truncated_stays_dead(log: SharedLog, disk: SimDisk) -> None:
    """An old leader's append and a new leader's shorter one, which begins below it, may share a round."""
    write(log, Created(1, 1, 0), Created(9, 1, 0), append(1, 1, 4))
    write(log, append(1, 5, 20), append(1, 3, 3, term=2))
    collect_all(log, disk)
    found = open_log(disk, SETTINGS)[1].groups[1]
    assert [(entry.index, entry.term) for entry in found.entries] == [(1, 1), (2, 1), (3, 2)]
    collect_all(log, disk, first=801)


def test_copies_that_their_own_round_truncates_stay_dead(disk: SimDisk) -> None:
    """The collector copies entries into the same round as the append that replaces what is before them."""
    log, _ = open_log(disk, LogSettings(segment_bytes=SEGMENT, round_bytes=600))
    write(log, Created(1, 1, 0), Created(9, 1, 0), append(1, 1, 4))
    write(log, append(1, 5, 20))
    index = 0
    while not log.stats().moved_bytes:
        index += 1
        write(log, append(9, index, index, size=300), compacted(9, index))
    # Entries 1 to 4 were copied, and the next round will have copies of the others.
    write(log, append(1, 3, 3, term=2))
    assert [round_ for _, _, round_, _ in log._index.groups[1].entries] == [log.stats().rounds - 1, log.stats().rounds]
    collect_all(log, disk, first=index + 1)
    found = open_log(disk, SETTINGS)[1].groups[1]
    assert [(entry.index, entry.term) for entry in found.entries] == [(1, 1), (2, 1), (3, 2)]


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ([(5, 21)], "entries 5 to 20 of group 1 are not live"),
        ([], r"\d+ bytes are live, but \d+ were found"),
    ],
    ids=["more", "less"],
)
def test_a_collector_that_errs_writes_nothing(
    log: SharedLog, disk: SimDisk, monkeypatch: pytest.MonkeyPatch, ranges: list[tuple[int, int]], reason: str
) -> None:
    """A wrong copy fails the log, and nothing is written."""
    write(log, Created(1, 1, 0), Created(9, 1, 0), append(1, 1, 4))
    write(log, append(1, 5, 20), append(1, 3, 3, term=2))
    monkeypatch.setattr(Extents, "inside", lambda _self, first, _last, *, round_: ranges if first == 5 else [])
    with pytest.raises(
        LogFailedError, match=f"cannot copy the live records of rounds 1 to .*: {reason}. Nothing was written"
    ):
        steady(log, 9, rounds=800, disk=disk)
    found = open_log(disk, SETTINGS)[1]
    assert [entry.index for entry in found.groups[1].entries] == [1, 2, 3]
    with pytest.raises(LogFailedError, match="This is a bug: report it"):
        log.maintain()


def test_damage_found_while_collecting_is_final(log: SharedLog, disk: SimDisk) -> None:
    """The log fails with the damaged round's place instead of copying it."""
    write(log, Created(1, 1, 0), Created(2, 1, 0, b"idle"))
    name = log._index.segments[0].name
    disk.flip(name, HEADER_BYTES + 50, 3)
    with pytest.raises(CorruptLogError, match=f"{name}, offset {HEADER_BYTES}: round 1 is unreadable") as caught:
        steady(log, 1, rounds=1000, disk=disk)
    with pytest.raises(CorruptLogError) as again:
        write(log, state(1, HardState(1, 0, 0)))
    assert again.value is caught.value

"""Recovery of the log, case by case."""

from __future__ import annotations

import re
from copy import deepcopy
from random import Random

import pytest

from evenkeel_raft.core.raft_types import EMPTY_META, HardState
from evenkeel_raft.errors import CorruptLogError
from evenkeel_raft.log.log_frames import FRAME_BYTES, HEADER_BYTES
from evenkeel_raft.log.log_records import Append, Created, Destroyed, Metastore, Moved
from evenkeel_raft.log.log_replay import ContradictionError, Replay
from evenkeel_raft.log.shared_log import SharedLog
from tests.raft_log.model import Writer
from tests.raft_log.sim import SimDisk, SimFile
from tests.raft_log.support import append, compacted, entries, indexes, installed, open_log, state, write


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> SharedLog:
    """A log with group 1, replica 1."""
    log, _ = open_log(disk)
    write(log, Created(1, 1, 0, b"orders/1"))
    return log


def places(log: SharedLog) -> list[tuple[str, int, int]]:
    """Return file, beginning and end of every round."""
    return [
        (segment.name, *segment.place(round_))
        for segment in log._index.segments
        for round_ in range(segment.first_round, segment.next_round)
    ]


def test_a_new_replica_is_empty(log: SharedLog, disk: SimDisk) -> None:
    """A created replica is recovered with its label and an empty log."""
    group = open_log(disk)[1].groups[1]
    assert (group.replica, group.generation, group.label) == (1, 0, b"orders/1")
    assert (group.meta, group.hard_state, group.entries) == (EMPTY_META, HardState(), [])


def test_entries_replace_from_the_first_on(log: SharedLog, disk: SimDisk) -> None:
    """A shorter replacement truncates the log."""
    write(log, append(1, 1, 9))
    write(log, append(1, 5, 6, term=2))
    found = open_log(disk)[1]
    assert [entry.term for entry in found.groups[1].entries] == [1, 1, 1, 1, 2, 2]


def test_a_snapshot_replaces_everything(log: SharedLog, disk: SimDisk) -> None:
    """A snapshot replaces the whole log; entries of the same record follow it."""
    write(log, append(1, 1, 20))
    write(log, installed(1, 9))
    assert indexes(open_log(disk)[1], 1) == []
    write(log, Append(1, 1, 0, installed(1, 10, term=3).snapshot, entries(11, 12, term=3), HardState(3, 0, 10)))
    group = open_log(disk)[1].groups[1]
    assert (group.meta.index, group.meta.term) == (10, 3)
    assert [entry.index for entry in group.entries] == [11, 12]


def test_compaction_keeps_what_is_above(log: SharedLog, disk: SimDisk) -> None:
    """Compaction keeps later entries and the configuration."""
    write(log, append(1, 1, 20))
    write(log, compacted(1, 15))
    found = open_log(disk)[1]
    assert indexes(found, 1) == [16, 17, 18, 19, 20]
    assert found.groups[1].meta.conf.voters == (1, 2, 3)


def test_a_destroyed_replica_is_recovered(log: SharedLog, disk: SimDisk) -> None:
    """A destroyed replica's id stays used; a higher one may be created."""
    write(log, append(1, 1, 3), Destroyed(1, 1))
    found = open_log(disk)[1]
    assert (found.groups, found.retired) == ({}, {1: 1})
    log, _ = open_log(disk)
    write(log, Created(1, 4, 0), append(1, 1, 1, replica=4))
    found = open_log(disk)[1]
    assert (found.groups[1].replica, indexes(found, 1), found.retired) == (4, [1], {})


def test_the_metastore_is_recovered(log: SharedLog, disk: SimDisk) -> None:
    """The last metastore mark is recovered."""
    write(log, Metastore(7, 100))
    write(log, Metastore(7, 250))
    assert open_log(disk)[1].metastore == Metastore(7, 250)


def test_generation_never_falls(log: SharedLog, disk: SimDisk) -> None:
    """The highest generation of its records is the replica's."""
    write(log, Append(1, 1, 3, None, entries(1, 1), None))
    assert open_log(disk)[1].groups[1].generation == 3


def test_a_torn_round_is_forgotten_and_overwritten(log: SharedLog, disk: SimDisk) -> None:
    """A torn round is dropped and the log continues in its place."""
    write(log, append(1, 1, 2))
    write(log, append(1, 3, 9))
    name, begin, end = places(log)[-1]
    disk.files[name].write((begin + end) // 2, b"torn")
    log, found = open_log(disk)
    assert indexes(found, 1) == [1, 2]
    write(log, append(1, 3, 3))
    assert places(log)[-1][:2] == (name, begin)
    assert indexes(open_log(disk)[1], 1) == [1, 2, 3]


def test_parts_of_a_torn_round_never_come_back(log: SharedLog, disk: SimDisk) -> None:
    """A torn round stays dropped even if its missing part appears on disk after a recovery."""
    write(log, append(1, 1, 1))
    write(log, append(1, 2, 2))
    name, begin, end = places(log)[-1]
    missing = disk.read(name, begin + FRAME_BYTES, end - begin - FRAME_BYTES)
    disk.files[name].write(begin + FRAME_BYTES, bytes(len(missing)))
    assert indexes(open_log(disk)[1], 1) == [1]
    disk.files[name].write(begin + FRAME_BYTES, missing)
    assert indexes(open_log(disk)[1], 1) == [1]


def test_parts_of_a_torn_first_round_never_come_back(log: SharedLog, disk: SimDisk) -> None:
    """A torn first round of a segment stays dropped, also if the header was lost."""
    while len(log._index.segments) < 2:
        write(log, append(1, log.stats().rounds, log.stats().rounds, size=500))
    name, begin, end = places(log)[-1]
    assert begin == HEADER_BYTES
    missing = disk.read(name, begin + FRAME_BYTES, end - begin - FRAME_BYTES)
    file = disk.files[name]
    file.write(0, bytes(HEADER_BYTES))
    file.write(begin + FRAME_BYTES, bytes(len(missing)))
    before = indexes(open_log(disk)[1], 1)
    file.write(begin + FRAME_BYTES, missing)
    assert indexes(open_log(disk)[1], 1) == before


def test_a_segment_that_was_abandoned_does_not_count(log: SharedLog, disk: SimDisk) -> None:
    """A segment whose first round was torn is abandoned if the next round needs another segment."""
    while len(log._index.segments) < 2:
        write(log, append(1, log.stats().rounds, log.stats().rounds, size=500))
    name, begin, end = places(log)[-1]
    torn = disk.read(name, begin, end - begin)
    disk.files[name].write(begin, bytes(end - begin))
    log, found = open_log(disk)
    last = indexes(found, 1)[-1]
    write(log, append(1, last + 1, last + 1, size=9000))
    write(log, append(1, last + 2, last + 2))
    assert indexes(open_log(disk)[1], 1) == list(range(1, last + 3))
    disk.files[name].write(begin, torn)
    assert indexes(open_log(disk)[1], 1) == list(range(1, last + 3))
    write(log, compacted(1, last + 2))
    for term in range(1, 200):
        write(log, state(1, HardState(term, 0, 0)))
    assert indexes(open_log(disk)[1], 1) == []


def test_a_header_without_its_round_frees_nothing(disk: SimDisk) -> None:
    """If the round that finishes a collection is lost, the old segment is still needed."""
    log, _ = open_log(disk)
    writer, freed = Writer(Random(8), payload=200), 0
    for _ in range(400):
        before, floor, model = deepcopy(disk.files), log._index.segments[:1], writer.model.copy()
        write(log, *writer.round())
        active = log._index.segments[-1]
        if active.next_round - active.first_round == 1 and floor != log._index.segments[:1]:
            freed += 1
            torn = SimDisk()
            torn.files = before
            torn.files.setdefault(active.name, SimFile(active.size)).write(0, disk.read(active.name, 0, HEADER_BYTES))
            assert model.equals(open_log(torn)[1])
    assert freed > 3


def test_rounds_out_of_sequence_are_refused(log: SharedLog, disk: SimDisk) -> None:
    """A readable round with the wrong number is refused."""
    write(log, append(1, 1, 1))
    log._round += 1
    log._index.apply = lambda *_args, **_kwargs: None  # type: ignore[method-assign]
    write(log, append(1, 2, 2))
    with pytest.raises(CorruptLogError, match="round 3 is unreadable but was durable, because round 4 follows it"):
        open_log(disk)


def test_damage_before_a_later_round_is_refused_by_place(log: SharedLog, disk: SimDisk) -> None:
    """Damage before a later round is refused, with the file and offset of the damaged round."""
    for index in range(1, 6):
        write(log, append(1, index, index))
    name, begin, _ = places(log)[2]
    disk.flip(name, begin + FRAME_BYTES + 3, 1)
    with pytest.raises(
        CorruptLogError, match=rf"{name}, offset {begin}: round 3 is unreadable but was durable, because round \d"
    ) as caught:
        open_log(disk)
    assert (caught.value.file, caught.value.offset) == (name, begin)


def test_damage_before_a_later_segment_is_refused_by_place(log: SharedLog, disk: SimDisk) -> None:
    """Damage at the end of a segment is refused too."""
    for index in range(1, 5):
        write(log, append(1, index, index, size=900))
    first, *_ = log._index.segments
    begin, _ = first.place(first.next_round - 1)
    disk.flip(first.name, begin + 40, 1)
    with pytest.raises(
        CorruptLogError, match=rf"{first.name}, offset {begin}: .* begins with round {first.next_round}"
    ):
        open_log(disk)


def test_a_missing_segment_is_refused(log: SharedLog, disk: SimDisk) -> None:
    """The error names the missing rounds."""
    for index in range(1, 7):
        write(log, append(1, index, index, size=900))
    first, second, third, *_ = log._index.segments
    kept = disk.files.pop(second.name)
    with pytest.raises(
        CorruptLogError, match=re.escape(f"{first.name}, offset {first.end}: round {second.first_round}")
    ):
        open_log(disk)
    disk.files[second.name] = kept
    del disk.files[first.name]
    with pytest.raises(CorruptLogError, match=f"{second.name}.*with rounds 1 to {second.first_round - 1} is missing"):
        open_log(disk)
    assert third.live


def test_a_shortened_file_is_refused(log: SharedLog, disk: SimDisk) -> None:
    """Files never shrink, so a missing end is damage and not a torn write."""
    write(log, append(1, 1, 2))
    name, begin, _ = places(log)[-1]
    del disk.files[name].cache[begin:]
    with pytest.raises(CorruptLogError, match="the file was truncated"):
        open_log(disk)


def test_a_lost_header_does_not_lose_its_segment(log: SharedLog, disk: SimDisk) -> None:
    """A lost header is derived from the first round."""
    write(log, append(1, 1, 2))
    disk.files[log._index.segments[0].name].write(0, bytes(HEADER_BYTES))
    assert indexes(open_log(disk)[1], 1) == [1, 2]


def test_a_lost_beginning_is_refused(log: SharedLog, disk: SimDisk) -> None:
    """If header and first round are unreadable, later rounds prove the damage."""
    write(log, append(1, 1, 2))
    write(log, append(1, 3, 4))
    name, _, end = places(log)[0]
    disk.files[name].write(0, bytes(end))
    with pytest.raises(
        CorruptLogError, match=rf"{name}, offset 0: round 1 is unreadable but was durable, because round 2 follows it"
    ):
        open_log(disk)


def test_stale_rounds_of_a_reused_file_do_not_replay(log: SharedLog, disk: SimDisk) -> None:
    """Readable rounds of a file's earlier segment are ignored."""
    for index in range(1, 400):
        write(log, append(1, index, index, size=100), compacted(1, index))
    assert log.stats().rounds > 100
    found = open_log(disk)[1]
    assert (indexes(found, 1), found.groups[1].meta.index) == ([], 399)


def test_records_of_an_unknown_kind_are_refused(log: SharedLog, disk: SimDisk) -> None:
    """Unknown records, perhaps of a later version, are refused."""
    log._index.apply = lambda *_args, **_kwargs: None  # type: ignore[method-assign]
    log.write([42])  # type: ignore[list-item]
    write(log, append(1, 1, 1))
    with pytest.raises(CorruptLogError, match="round 2 holds unknown records"):
        open_log(disk)


def test_entries_that_were_not_moved_are_missed(log: SharedLog, disk: SimDisk) -> None:
    """A gap in a group's log is refused."""
    write(log, append(1, 1, 2))
    log._index.apply = lambda *_args, **_kwargs: None  # type: ignore[method-assign]
    log.write([append(1, 5, 6)])
    with pytest.raises(CorruptLogError, match="group 1: entries 3 to 4 are missing"):
        open_log(disk)


def test_a_replica_never_comes_after_its_successor() -> None:
    """Records of a lower replica id after a higher one are refused."""
    replay = Replay()
    replay.apply([Created(1, 4, 0), Destroyed(1, 4)], 1)
    with pytest.raises(ContradictionError, match="replica 3 of group 1 follows one of replica 4"):
        replay.apply([state(1, HardState(), replica=3)], 2)


def test_copies_fill_the_place_of_what_they_copy() -> None:
    """Copies replay correctly whether their originals are present, partly present or gone."""
    original = [append(1, 1, 4), append(1, 5, 8)]
    for kept in ([], original[:1], original[1:], original):
        for first in range(1, 9):
            for last in range(first, 9):
                replay = Replay()
                replay.apply([*kept, append(1, 9, 10)], 1)
                replay.apply([Moved(1, 1, 0, b"", None, entries(first, last), None)], 2)
                replay.apply([Moved(1, 1, 0, None, None, entries(1, 8), None)], 3)
                group = replay.groups[1]
                assert group.entries() == entries(1, 10)
                assert [mark for run in group.runs for mark in zip(run.firsts, run.rounds, strict=True)] == [
                    (1, 3),
                    (9, 1),
                ]

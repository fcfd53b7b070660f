"""Garbage collection: copies live records out of the oldest segment, so that its file can be reused.

Only the oldest segment is collected. The record that supersedes another is written after it, so the superseded one is
freed first and cannot reappear. The price is that long-lived records are copied once per pass over the log. The log may
be twice as long as its live records plus a few segments, so each byte written costs at most about one byte copied.

One round may hold several versions of a record, even of the same entries: appends of two leaders, or a copy and the
append that truncates it. The last one in the round is live, unless a later round superseded it.

Before anything is written, the copies are checked against the index: together they must be exactly the live bytes of
their rounds. A wrong copy would become durable and be found only by the next recovery, which would refuse the volume.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field

from evenkeel_raft.core.raft_types import Entry, HardState, SnapshotMeta
from evenkeel_raft.errors import CorruptLogError, LogFailedError
from evenkeel_raft.log.live_index import GroupIndex, Index
from evenkeel_raft.log.log_disk import Disk
from evenkeel_raft.log.log_frames import Layout
from evenkeel_raft.log.log_records import (
    Append,
    Compacted,
    Created,
    Destroyed,
    Metastore,
    Moved,
    StoredRecord,
    index_range,
)
from evenkeel_raft.log.segments import Segment

__all__ = ["RECORD_COST", "Collected", "Collector"]

# The fixed cost of a record, expressed in bytes copied.
RECORD_COST: Final = 512


class Collected(Struct, frozen=True):
    """Copies to write. Once they are durable, all rounds below `floor` are garbage."""

    records: list[StoredRecord]
    cursor: int
    floor: int


class Collector:
    """Walks through the oldest segment, round by round."""

    def __init__(self, disk: Disk, layout: Layout, index: Index) -> None:
        self._disk = disk
        self._layout = layout
        self._index = index
        self._cursor = 0

    def collect(self, budget: int) -> Collected:
        """Return copies of the live records of the oldest segment, at about this cost."""
        segment, after = self._index.segments[:2]
        gathered = _LiveRecords(self._index)
        first = round_ = segment.next_live(max(self._cursor, segment.first_round))
        live = 0
        while budget > 0 and round_ < segment.next_round:
            records = self._read(segment, round_)
            gathered.add(records, round_)
            live += segment.live_in(round_)
            budget -= segment.live_in(round_) + RECORD_COST * len(records)
            round_ = segment.next_live(round_ + 1)
        copies = gathered.records()
        wrong = _mismatch(copies, self._index, live=live)
        if wrong:
            raise LogFailedError(
                f"{segment.name}: cannot copy the live records of rounds {first} to {round_ - 1}: {wrong}. Nothing was "
                "written. This is a bug: report it, and restart the process to recover from disk"
            )
        done = round_ == segment.next_round
        return Collected(copies, round_, after.first_round if done else segment.first_round)

    def advance(self, collected: Collected) -> None:
        """Continue after these copies, which are now durable."""
        self._cursor = collected.cursor

    def _read(self, segment: Segment, round_: int) -> list[StoredRecord]:
        begin, end = segment.place(round_)
        data = self._disk.read(segment.name, begin, end - begin)
        frame = self._layout.frame_at(memoryview(data), 0, segment=segment.number, base=begin)
        records = frame.records() if frame is not None else None
        if records is None:
            raise CorruptLogError(
                f"round {round_} is unreadable but still needed; replace this store's volume",
                file=segment.name,
                offset=begin,
            )
        return records


class _LiveGroup(Struct):
    """The live records of one group."""

    label: bytes | None = None
    meta: SnapshotMeta | None = None
    hard_state: HardState | None = None
    entries: dict[int, Entry] = field(default_factory=dict)

    def moved(self, number: int, group: GroupIndex) -> Iterator[Moved]:
        """Yield the copies, one for each run of entries."""
        runs = list(_runs(self.entries)) or [[]]
        yield Moved(number, group.replica, group.generation, self.label, self.meta, runs[0], self.hard_state)
        for run in runs[1:]:
            yield Moved(number, group.replica, group.generation, None, None, run, None)


class _LiveRecords:
    """The live records of some rounds, in the order they were written; within a round the last version counts."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._groups: dict[int, _LiveGroup] = {}
        self._retired: dict[int, StoredRecord] = {}
        self._metastore: StoredRecord | None = None

    def add(self, records: list[StoredRecord], round_: int) -> None:
        """Add the live records of a round."""
        for record in records:
            if isinstance(record, Append):
                self._take(record, record.snapshot, None, round_)
            elif isinstance(record, Moved):
                self._take(record, record.meta, record.label, round_)
            else:
                self._take_small(record, round_)

    def _take(self, record: Append | Moved, meta: SnapshotMeta | None, label: bytes | None, round_: int) -> None:
        group = self._index.groups.get(record.group)
        if group is None:
            return
        entries = record.entries
        if entries:
            begin = entries[0].index
            for first, end in group.entries.inside(begin, entries[-1].index, round_=round_):
                live = self._group(record.group).entries
                for entry in entries[first - begin : end - begin]:
                    live[entry.index] = entry
        if record.hard_state is not None and group.hard_state.round == round_:
            self._group(record.group).hard_state = record.hard_state
        if meta is not None and group.meta.round == round_:
            self._group(record.group).meta = meta
        if label is not None and group.identity.round == round_:
            self._group(record.group).label = label

    def _take_small(self, record: Created | Compacted | Destroyed | Metastore, round_: int) -> None:
        index = self._index
        if isinstance(record, Metastore):
            if index.metastore.round == round_:
                self._metastore = record
        elif isinstance(record, Destroyed):
            if record.group in index.retired and index.retired[record.group][1].round == round_:
                self._retired[record.group] = record
        elif record.group in index.groups:
            group = index.groups[record.group]
            if isinstance(record, Created) and group.identity.round == round_:
                self._group(record.group).label = record.label
            elif isinstance(record, Compacted) and group.meta.round == round_:
                self._group(record.group).meta = record.meta

    def _group(self, group: int) -> _LiveGroup:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = _LiveGroup()
        return found

    def records(self) -> list[StoredRecord]:
        """Return the copies."""
        moved = [
            record
            for number, found in self._groups.items()
            for record in found.moved(number, self._index.groups[number])
        ]
        return [*self._retired.values(), *([self._metastore] if self._metastore is not None else []), *moved]


def _mismatch(copies: list[StoredRecord], index: Index, *, live: int) -> str:
    """Return how these copies differ from the live bytes of their rounds; empty if they match."""
    found = 0
    for copy in copies:
        if isinstance(copy, Moved):
            group = index.groups[copy.group]
            size = group.entries.size_of(*index_range(copy.entries)) if copy.entries else 0
            if copy.entries and not size:
                return f"entries {copy.entries[0].index} to {copy.entries[-1].index} of group {copy.group} are not live"
            parts = ((copy.label, group.identity), (copy.meta, group.meta), (copy.hard_state, group.hard_state))
            found += size + sum(place.size for part, place in parts if part is not None)
        elif isinstance(copy, Destroyed):
            found += index.retired[copy.group][1].size
        else:
            found += index.metastore.size
    return f"{live} bytes are live, but {found} were found" if found != live else ""


def _runs(entries: dict[int, Entry]) -> Iterator[list[Entry]]:
    """Yield entries in order, consecutive ones together."""
    run: list[Entry] = []
    for index in sorted(entries):
        if run and run[-1].index + 1 != index:
            yield run
            run = []
        run.append(entries[index])
    if run:
        yield run

"""Moving what is needed out of the oldest segment, so that its file can be used again.

Strictly the oldest: whatever made a record obsolete was written after it, so the obsolete record goes first and cannot
come back. The price is that what lives long is copied once per turn of the log; the log is allowed to be twice as long
as what is live in it, plus a few segments, so a byte written costs at most about one byte copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from evenkeel_raft.core.types import Entry, HardState, SnapshotMeta
from evenkeel_raft.errors import CorruptLogError
from evenkeel_raft.log.disk import Disk
from evenkeel_raft.log.frames import Layout
from evenkeel_raft.log.index import GroupIndex, Index
from evenkeel_raft.log.records import Append, Compacted, Created, Destroyed, Metastore, Moved, StoredRecord
from evenkeel_raft.log.segments import Segment

__all__ = ["Collector", "Harvest"]


class Harvest(Struct, frozen=True):
    """Copies to write, and what may be forgotten once they are durable: all rounds below `floor`."""

    records: list[StoredRecord]
    cursor: int
    floor: int


class _Found(Struct):
    """What one round says of one group."""

    label: bytes | None = None
    meta: SnapshotMeta | None = None
    hard_state: HardState | None = None
    entries: dict[int, Entry] = field(default_factory=dict)


class Collector:
    """Walks through the oldest segment, round by round."""

    def __init__(self, disk: Disk, layout: Layout, index: Index) -> None:
        self._disk = disk
        self._layout = layout
        self._index = index
        self._cursor = 0
        self.moved = 0

    def harvest(self, budget: int) -> Harvest:
        """Return copies of the live records of the oldest segment, of about so many bytes."""
        segment, after = self._index.segments[:2]
        records: list[StoredRecord] = []
        round_ = segment.next_live(max(self._cursor, segment.first_round))
        while budget > 0 and round_ < segment.next_round:
            records += self._survivors(self._read(segment, round_), round_)
            budget -= segment.live_in(round_)
            round_ = segment.next_live(round_ + 1)
        done = round_ == segment.next_round
        return Harvest(records, round_, after.first_round if done else segment.first_round)

    def reaped(self, harvest: Harvest) -> None:
        """The copies are durable: go on behind them."""
        self._cursor = harvest.cursor

    def _read(self, segment: Segment, round_: int) -> list[StoredRecord]:
        begin, end = segment.place(round_)
        data = self._disk.read(segment.name, begin, end - begin)
        frame = self._layout.frame_at(memoryview(data), 0, segment=segment.number, base=begin)
        records = frame.records() if frame is not None else None
        if records is None:
            raise CorruptLogError(
                f"round {round_} cannot be read back, and some of it is still needed: replace this store's volume",
                file=segment.name,
                offset=begin,
            )
        return records

    def _survivors(self, records: list[StoredRecord], round_: int) -> Iterator[StoredRecord]:
        index = self._index
        for record in records:
            if isinstance(record, Destroyed):
                _, place = index.retired.get(record.group, (0, None))
                if place is not None and place.round == round_:
                    yield record
        seen = [record for record in records if isinstance(record, Metastore)]
        if seen and index.metastore.round == round_:
            yield seen[-1]
        for number, found in _by_group(records, index).items():
            yield from _moved(number, index.groups[number], found, round_)


def _by_group(records: Iterable[StoredRecord], index: Index) -> dict[int, _Found]:
    """Gather what a round says last of each group that is still here."""
    groups: dict[int, _Found] = {}
    for record in records:
        if isinstance(record, Metastore | Destroyed) or record.group not in index.groups:
            continue
        found = groups.get(record.group)
        if found is None:
            found = groups[record.group] = _Found()
        _gather(record, found)
    return groups


def _gather(record: Created | Append | Compacted | Moved, found: _Found) -> None:
    if isinstance(record, Created):
        found.label = record.label
    elif isinstance(record, Compacted):
        found.meta = record.meta
    else:
        if isinstance(record, Moved):
            found.label = found.label if record.label is None else record.label
        meta = record.meta if isinstance(record, Moved) else record.snapshot
        found.meta = meta or found.meta
        found.hard_state = record.hard_state or found.hard_state
        found.entries.update((entry.index, entry) for entry in record.entries)


def _moved(number: int, group: GroupIndex, found: _Found, round_: int) -> Iterator[Moved]:
    label = found.label if group.identity.round == round_ else None
    meta = found.meta if group.meta.round == round_ else None
    hard_state = found.hard_state if group.hard_state.round == round_ else None
    runs = list(_runs(group, found.entries, round_)) if found.entries else []
    if label is not None or meta is not None or hard_state is not None:
        first = runs.pop(0) if runs else []
        yield Moved(number, group.replica, group.generation, label, meta, first, hard_state)
    for entries in runs:
        yield Moved(number, group.replica, group.generation, None, None, entries, None)


def _runs(group: GroupIndex, entries: dict[int, Entry], round_: int) -> Iterator[list[Entry]]:
    """Yield the live entries that a round holds, consecutive ones together."""
    run: list[Entry] = []
    for first, end in group.entries.inside(min(entries), max(entries), round_=round_):
        if run and run[-1].index + 1 != first:
            yield run
            run = []
        run += [entries[index] for index in range(first, end)]
    if run:
        yield run

"""The index of live records: where each group's parts are, and how many bytes of each round are live.

For each group it knows the rounds that hold its identity, its hard state, its log's beginning and its entries. It holds
places, not contents; garbage collection reads those back from disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from evenkeel_raft.log.entry_extents import Dropped, Extents
from evenkeel_raft.log.log_records import Append, Compacted, Created, Destroyed, Moved, StoredRecord, index_range
from evenkeel_raft.log.segments import Segment

__all__ = ["SMALL", "GroupIndex", "Index", "Place"]

SMALL: Final = 24  # about the size of a record without contents, or of a hard state
_NOWHERE: Final = -1


class Place(Struct, gc=False):
    """The round that holds a record, and the record's size in bytes."""

    round: int = _NOWHERE
    size: int = 0


class GroupIndex:
    """The places of one replica's records."""

    __slots__ = ("entries", "generation", "hard_state", "identity", "meta", "replica")

    def __init__(self, replica: int, generation: int) -> None:
        self.replica = replica
        self.generation = generation
        self.identity = Place()
        self.hard_state = Place()
        self.meta = Place()
        self.entries = Extents()

    def places(self) -> Iterator[Place]:
        """Yield the places in use, except those of entries."""
        yield from (place for place in (self.identity, self.hard_state, self.meta) if place.round != _NOWHERE)


class Index:
    """The places of all groups' records, and the segments in use, oldest first, with their live bytes."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.groups: dict[int, GroupIndex] = {}
        self.retired: dict[int, tuple[int, Place]] = {}
        self.metastore = Place()
        self.live = 0
        self._added = 0  # live bytes of the newest round, counted once it is complete

    # Counting

    def count(self, round_: int, size: int) -> None:
        """Add to a round's live bytes; a negative size subtracts."""
        segments = self.segments
        segment = segments[-1]
        if round_ < segment.first_round:
            segment = segments[bisect_right(segments, round_, key=_first_round) - 1]
        segment.count(round_, size)
        self.live += size

    def _put(self, place: Place, round_: int, size: int) -> None:
        if place.round != _NOWHERE:
            self.count(place.round, -place.size)
        place.round, place.size = round_, size
        self._added += size

    def _drop(self, dropped: Dropped) -> None:
        for round_, size in dropped:
            self.count(round_, -size)

    # Applying

    def apply(self, records: Iterable[StoredRecord], sizes: Iterable[int], *, round_: int) -> None:
        """Record what the newest durable round holds and what it supersedes."""
        for record, size in zip(records, sizes, strict=True):
            if isinstance(record, Append):
                self._append(record, size, round_)
            elif isinstance(record, Moved):
                self._move(record, size, round_)
            elif isinstance(record, Compacted):
                group = self.groups[record.group]
                group.generation = record.generation
                self._put(group.meta, round_, size)
                self._drop(group.entries.compact(record.meta.index))
            elif isinstance(record, Created):
                self._create(record, size, round_)
            elif isinstance(record, Destroyed):
                self._destroy(record, size, round_)
            else:
                self._put(self.metastore, round_, size)
        self.count(round_, self._added)
        self._added = 0

    def _append(self, record: Append, size: int, round_: int) -> None:
        group = self.groups[record.group]
        group.generation = record.generation
        if record.snapshot is not None:
            self._drop(group.entries.cut(0))
            self._put(group.meta, round_, size if not record.entries else SMALL)
        if record.hard_state is not None:
            self._put(group.hard_state, round_, SMALL)
        if record.entries:
            first, end = index_range(record.entries)
            self._drop(group.entries.append(first, end, round_=round_, size=size))
            self._added += size

    def _move(self, record: Moved, size: int, round_: int) -> None:
        group = self.groups[record.group]
        if record.label is not None:
            self._put(group.identity, round_, SMALL + len(record.label))
        if record.meta is not None:
            self._put(group.meta, round_, group.meta.size)
        if record.hard_state is not None:
            self._put(group.hard_state, round_, SMALL)
        if record.entries:
            first, end = index_range(record.entries)
            self._drop(group.entries.move(first, end, round_=round_, size=size))
            self._added += size

    def _create(self, record: Created, size: int, round_: int) -> None:
        self._forget_retired(record.group)
        self.groups[record.group] = group = GroupIndex(record.replica, record.generation)
        self._put(group.identity, round_, size)

    def _destroy(self, record: Destroyed, size: int, round_: int) -> None:
        group = self.groups.pop(record.group, None)
        if group is not None:
            self._drop(group.entries.cut(0))
            for place in group.places():
                self.count(place.round, -place.size)
        self._forget_retired(record.group)
        place = Place()
        self.retired[record.group] = (record.replica, place)
        self._put(place, round_, size)

    def _forget_retired(self, group: int) -> None:
        _, place = self.retired.pop(group, (0, Place()))
        if place.round != _NOWHERE:
            self.count(place.round, -place.size)


def _first_round(segment: Segment) -> int:
    return segment.first_round

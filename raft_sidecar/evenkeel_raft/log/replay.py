"""From records to groups: what a log says when its rounds are read in the order they were written.

The oldest segments are gone, and what was needed of them was copied to where the log ended then. So a group's entries
may begin in the middle and be filled in later, and a replica may be met before the record that names it.
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct

from evenkeel_raft.core.types import EMPTY_META, Entry, HardState, SnapshotMeta
from evenkeel_raft.log.records import (
    Append,
    Compacted,
    Created,
    Destroyed,
    Metastore,
    Moved,
    StoredRecord,
    entries_size,
)

__all__ = ["Chunk", "ContradictionError", "Replay", "ReplayedGroup"]


class ContradictionError(Exception):
    """Records that no log could have been told in this order."""


class Chunk(Struct, gc=False):
    """Consecutive entries that one round holds; never empty."""

    round: int
    entries: list[Entry]

    @property
    def first(self) -> int:
        """The index of the first entry."""
        return self.entries[0].index

    @property
    def end(self) -> int:
        """One past the index of the last entry."""
        return self.entries[-1].index + 1

    @property
    def size(self) -> int:
        """About how many bytes it takes up."""
        return entries_size(self.entries)


class ReplayedGroup:
    """One replica, and which rounds hold its parts (-1: none)."""

    __slots__ = (
        "chunks",
        "generation",
        "hard_state",
        "hard_state_round",
        "identity_round",
        "label",
        "meta",
        "meta_round",
        "replica",
    )

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.generation = 0
        self.label = b""
        self.meta = EMPTY_META
        self.hard_state = HardState()
        self.identity_round = self.meta_round = self.hard_state_round = -1
        self.chunks: list[Chunk] = []

    def name(self, label: bytes, round_: int) -> None:
        """Note what the caller calls it."""
        self.label, self.identity_round = label, round_

    def begin_after(self, meta: SnapshotMeta, round_: int) -> None:
        """Note where the log begins, and drop what lies before."""
        self.meta, self.meta_round = meta, round_
        chunks, index = self.chunks, meta.index
        keep = 0
        while keep < len(chunks) and chunks[keep].end <= index + 1:
            keep += 1
        del chunks[:keep]
        if chunks and chunks[0].first <= index:
            chunks[0] = Chunk(chunks[0].round, chunks[0].entries[index + 1 - chunks[0].first :])

    def set_hard_state(self, state: HardState, round_: int) -> None:
        """Note term, vote and commit index."""
        self.hard_state, self.hard_state_round = state, round_

    def append(self, entries: list[Entry], round_: int) -> None:
        """Replace everything from the first of these entries on."""
        chunks, first = self.chunks, entries[0].index
        while chunks and chunks[-1].first >= first:
            chunks.pop()
        if chunks and chunks[-1].end > first:
            chunks[-1] = Chunk(chunks[-1].round, chunks[-1].entries[: first - chunks[-1].first])
        chunks.append(Chunk(round_, entries))

    def fill(self, entries: list[Entry], round_: int) -> None:
        """Put copies of live entries in their place, instead of the originals where those are still here."""
        chunks, first, end = self.chunks, entries[0].index, entries[-1].index + 1
        low = bisect_right(chunks, first, key=lambda chunk: chunk.first)
        low -= bool(low and chunks[low - 1].end > first)
        high = low
        while high < len(chunks) and chunks[high].first < end:
            high += 1
        before = _part(chunks[low], chunks[low].first, first) if low < high else None
        after = _part(chunks[high - 1], end, chunks[high - 1].end) if low < high else None
        parts = [before, Chunk(round_, entries), after]
        chunks[low:high] = [part for part in parts if part is not None]

    def entries(self) -> list[Entry]:
        """Return the log; raises `ContradictionError` if some of it is missing."""
        found: list[Entry] = []
        index = self.meta.index + 1
        for chunk in self.chunks:
            if chunk.first != index:
                raise ContradictionError(f"entries {index} to {chunk.first - 1} are missing")
            found += chunk.entries
            index = chunk.end
        return found


class Replay:
    """All groups of a volume, as far as the records were read."""

    def __init__(self) -> None:
        self.groups: dict[int, ReplayedGroup] = {}
        self.retired: dict[int, tuple[int, int]] = {}  # replica id and round
        self.metastore: tuple[Metastore | None, int] = (None, -1)

    def apply(self, records: list[StoredRecord], round_: int) -> None:
        """Take in a round's records."""
        for record in records:
            if isinstance(record, Append):
                self._append(record, round_)
            elif isinstance(record, Moved):
                self._move(record, round_)
            elif isinstance(record, Compacted):
                self._group(record).begin_after(record.meta, round_)
            elif isinstance(record, Created):
                self._group(record).name(record.label, round_)
            elif isinstance(record, Destroyed):
                self._destroy(record, round_)
            else:
                self.metastore = (record, round_)

    def _append(self, record: Append, round_: int) -> None:
        group = self._group(record)
        if record.snapshot is not None:
            group.chunks.clear()
            group.begin_after(record.snapshot, round_)
        if record.hard_state is not None:
            group.set_hard_state(record.hard_state, round_)
        if record.entries:
            group.append(record.entries, round_)

    def _move(self, record: Moved, round_: int) -> None:
        group = self._group(record)
        if record.label is not None:
            group.name(record.label, round_)
        if record.meta is not None:
            group.begin_after(record.meta, round_)
        if record.hard_state is not None:
            group.set_hard_state(record.hard_state, round_)
        if record.entries:
            group.fill(record.entries, round_)

    def _group(self, record: Append | Compacted | Created | Moved) -> ReplayedGroup:
        group = self.groups.get(record.group)
        if group is None or group.replica != record.replica:
            group = self._begin(record.group, record.replica, group)
        group.generation = max(group.generation, record.generation)
        return group

    def _begin(self, number: int, replica: int, before: ReplayedGroup | None) -> ReplayedGroup:
        used, _ = self.retired.pop(number, (-1, -1))
        used = max(used, before.replica if before is not None else -1)
        if replica <= used:
            raise ContradictionError(f"a record of replica {replica} of group {number} follows one of replica {used}")
        group = self.groups[number] = ReplayedGroup(replica)
        return group

    def _destroy(self, record: Destroyed, round_: int) -> None:
        self.groups.pop(record.group, None)
        self.retired[record.group] = (record.replica, round_)


def _part(chunk: Chunk, first: int, end: int) -> Chunk | None:
    if first >= end:
        return None
    return Chunk(chunk.round, chunk.entries[first - chunk.first : end - chunk.first])

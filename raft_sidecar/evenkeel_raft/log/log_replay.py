"""Replay of the log's records into groups, in the order they were written.

The oldest segments were freed after their live records were copied to the end of the log. So replay may meet a group's
later entries before its earlier ones, and a replica's entries before the record that creates it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from msgspec import Struct

from evenkeel_raft.core.raft_types import EMPTY_META, Entry, HardState, SnapshotMeta
from evenkeel_raft.log.log_records import Append, Compacted, Created, Destroyed, Metastore, Moved, StoredRecord

__all__ = ["ContradictionError", "Replay", "ReplayedGroup", "Run"]

NOWHERE = -1


class ContradictionError(Exception):
    """The records contradict each other; no valid log has them in this order."""


class Run(Struct, gc=False):
    """One or more consecutive entries; `rounds[i]` holds those from the index `firsts[i]` on."""

    first: int
    entries: list[Entry]
    firsts: list[int]
    rounds: list[int]

    @property
    def end(self) -> int:
        """One past the index of the last entry."""
        return self.first + len(self.entries)

    def split(self, index: int) -> Run:
        """Keep the entries below an index within the run, and return the rest."""
        at, mark = index - self.first, bisect_right(self.firsts, index) - 1
        rest = Run(index, self.entries[at:], [index, *self.firsts[mark + 1 :]], self.rounds[mark:])
        mark = bisect_left(self.firsts, index)
        del self.entries[at:], self.firsts[mark:], self.rounds[mark:]
        return rest


class ReplayedGroup:
    """One replica's records, and the rounds that hold them."""

    __slots__ = (
        "generation",
        "hard_state",
        "hard_state_round",
        "identity_round",
        "label",
        "meta",
        "meta_round",
        "replica",
        "runs",
    )

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.generation = 0
        self.label = b""
        self.meta = EMPTY_META
        self.hard_state = HardState()
        self.identity_round = self.meta_round = self.hard_state_round = NOWHERE
        self.runs: list[Run] = []

    @property
    def last(self) -> int:
        """The index of the last entry, or the index after which the log begins."""
        return self.runs[-1].end - 1 if self.runs else self.meta.index

    def begin_after(self, meta: SnapshotMeta, round_: int) -> None:
        """Set where the log begins, and drop earlier entries."""
        self.meta, self.meta_round = meta, round_
        self.runs = self._split(meta.index + 1)

    def append(self, entries: list[Entry], round_: int) -> None:
        """Replace everything from the first of these entries on."""
        first, runs = entries[0].index, self.runs
        if runs:
            run = runs[-1]
            if run.first + len(run.entries) != first:
                self._split(first)
                run = runs[-1] if runs else run
            if run.first + len(run.entries) == first:
                run.entries += entries
                run.firsts.append(first)
                run.rounds.append(round_)
                return
        runs.append(Run(first, entries, [first], [round_]))

    def fill(self, entries: list[Entry], round_: int) -> None:
        """Insert copies of live entries, replacing their originals if those are still present."""
        above = self._split(entries[-1].index + 1)
        self.append(entries, round_)
        self.runs += above

    def _split(self, index: int) -> list[Run]:
        """Keep the entries below an index, and return the others."""
        runs = self.runs
        keep = len(runs)
        while keep and runs[keep - 1].first >= index:
            keep -= 1
        above = runs[keep:]
        del runs[keep:]
        if runs and runs[-1].end > index:
            above.insert(0, runs[-1].split(index))
        return above

    def entries(self) -> list[Entry]:
        """Return the log; raises `ContradictionError` if some of it is missing."""
        found: list[Entry] = []
        index = self.meta.index + 1
        for run in self.runs:
            if run.first != index:
                raise ContradictionError(f"entries {index} to {run.first - 1} are missing")
            found = found + run.entries if found else run.entries
            index = run.end
        return found


class Replay:
    """All groups of a volume, as of the records replayed so far."""

    def __init__(self) -> None:
        self.groups: dict[int, ReplayedGroup] = {}
        self.retired: dict[int, tuple[int, int]] = {}  # replica id and round
        self.metastore: tuple[Metastore | None, int] = (None, NOWHERE)

    def apply(self, records: list[StoredRecord], round_: int) -> None:
        """Replay a round's records."""
        for record in records:
            if isinstance(record, Append):
                self._append(record, round_)
            elif isinstance(record, Moved):
                self._move(record, round_)
            elif isinstance(record, Compacted):
                self._group(record).begin_after(record.meta, round_)
            elif isinstance(record, Created):
                group = self._group(record)
                group.label, group.identity_round = record.label, round_
            elif isinstance(record, Destroyed):
                self.groups.pop(record.group, None)
                self.retired[record.group] = (record.replica, round_)
            else:
                self.metastore = (record, round_)

    def _append(self, record: Append, round_: int) -> None:
        group = self._group(record)
        if record.snapshot is not None:
            group.runs.clear()
            group.begin_after(record.snapshot, round_)
        if record.entries:
            group.append(record.entries, round_)
        if record.hard_state is not None:
            group.hard_state, group.hard_state_round = record.hard_state, round_

    def _move(self, record: Moved, round_: int) -> None:
        group = self._group(record)
        if record.label is not None:
            group.label, group.identity_round = record.label, round_
        if record.meta is not None:
            group.begin_after(record.meta, round_)
        if record.entries:
            group.fill(record.entries, round_)
        if record.hard_state is not None:
            group.hard_state, group.hard_state_round = record.hard_state, round_

    def _group(self, record: Append | Compacted | Created | Moved) -> ReplayedGroup:
        group = self.groups.get(record.group)
        if group is None or group.replica != record.replica:
            group = self._begin(record.group, record.replica, group)
        group.generation = max(group.generation, record.generation)
        return group

    def _begin(self, number: int, replica: int, before: ReplayedGroup | None) -> ReplayedGroup:
        used, _ = self.retired.pop(number, (NOWHERE, NOWHERE))
        used = max(used, before.replica if before is not None else NOWHERE)
        if replica <= used:
            raise ContradictionError(f"a record of replica {replica} of group {number} follows one of replica {used}")
        group = self.groups[number] = ReplayedGroup(replica)
        return group

"""A simple model of the log's contents, and a generator of random valid records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Self

from msgspec import Struct

from evenkeel_raft.core.raft_types import EMPTY_META, Conf, Entry, HardState, SnapshotMeta
from evenkeel_raft.log.log_rebuild import Recovered
from evenkeel_raft.log.log_records import Append, Compacted, Created, Destroyed, Metastore, Record


@dataclass
class Replica:
    """One replica's log and state."""

    replica: int
    generation: int
    label: bytes
    meta: SnapshotMeta = EMPTY_META
    hard_state: HardState = HardState()  # noqa: RUF009
    entries: dict[int, Entry] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return max(self.entries, default=self.meta.index)


@dataclass
class Model:
    """All groups of a volume."""

    groups: dict[int, Replica] = field(default_factory=dict)
    retired: dict[int, int] = field(default_factory=dict)
    metastore: Metastore | None = None

    def copy(self) -> Self:
        groups = {number: replace(group, entries=dict(group.entries)) for number, group in self.groups.items()}
        return replace(self, groups=groups, retired=dict(self.retired))

    def after(self, records: Sequence[Record]) -> Self:
        """Return the model after these records."""
        then = self.copy()
        for record in records:
            then.apply(record)
        return then

    def apply(self, record: Record) -> None:
        match record:
            case Created(group, replica, generation, label):
                self.groups[group] = Replica(replica, generation, label)
                self.retired.pop(group, None)
            case Destroyed(group, replica):
                self.groups.pop(group, None)  # its creating record may have been dropped before it was written
                self.retired[group] = replica
            case Append():
                self._append(self.groups[record.group], record)
            case Compacted(group, _, generation, meta):
                found = self.groups[group]
                found.generation, found.meta = generation, meta
                found.entries = {index: entry for index, entry in found.entries.items() if index > meta.index}
            case Metastore():
                self.metastore = record

    def _append(self, group: Replica, record: Append) -> None:
        group.generation = record.generation
        if record.snapshot is not None:
            group.meta, group.entries = record.snapshot, {}
        if record.hard_state is not None:
            group.hard_state = record.hard_state
        if record.entries:
            first = record.entries[0].index
            group.entries = {index: old for index, old in group.entries.items() if index < first}
            group.entries.update({entry.index: entry for entry in record.entries})

    def equals(self, found: Recovered) -> bool:
        return self == from_recovered(found)


def from_recovered(found: Recovered) -> Model:
    """Convert recovered contents into a model."""
    groups = {
        number: Replica(
            group.replica,
            group.generation,
            group.label,
            group.meta,
            group.hard_state,
            {entry.index: entry for entry in group.entries},
        )
        for number, group in found.groups.items()
    }
    return Model(groups, dict(found.retired), found.metastore)


class Habits(Struct, frozen=True):
    """Probabilities of record kinds; `commit` is the probability that a commit index rises."""

    groups: int = 4
    payload: int = 60
    entries: tuple[int, ...] = (0, 1, 1, 2, 5)
    same_group: float = 0.0  # that a record is of the same group as the one before
    election: float = 0.15
    truncation: float = 0.25
    commit: float = 1.0
    snapshot: float = 0.07
    compaction: float = 0.22
    destruction: float = 0.03
    long: int = 40  # entries from which on a log is committed and compacted all the time


class Writer:
    """Draws records that a correct sidecar could write next."""

    def __init__(self, rng: Random, *, groups: int = 4, payload: int = 60, habits: Habits | None = None) -> None:
        self.rng = rng
        self.habits = habits or Habits(groups=groups, payload=payload)
        self.model = Model()  # with everything drawn, durable or not
        self._number = 0

    def draw(self, durable: Model | None = None) -> Record:
        """Draw a record; `durable` is the log's contents, if not everything that was drawn."""
        record = self._draw(self.model if durable is None else durable)
        self.model.apply(record)
        return record

    def round(self) -> list[Record]:
        return [self.draw() for _ in range(self.rng.choice([0, 1, 1, 2, 3, 6]))]

    def _draw(self, durable: Model) -> Record:
        rng, habits = self.rng, self.habits
        if rng.random() >= habits.same_group:
            self._number = rng.randrange(habits.groups)
        number = self._number
        group = self.model.groups.get(number)
        if rng.random() < 0.03:
            seen = self.model.metastore.revision if self.model.metastore else 0
            return Metastore(cluster=7, revision=seen + rng.randrange(3))
        if group is None:
            replica = self.model.retired.get(number, 0) + rng.randint(1, 3)
            return Created(number, replica, rng.choice([0, 0, 2]), rng.randbytes(rng.randrange(5)))
        kind = rng.random()
        if kind < habits.destruction:
            return Destroyed(number, group.replica)
        if kind < habits.destruction + habits.compaction or len(group.entries) > habits.long:
            choice = _compactable(group, group if durable is self.model else durable.groups.get(number))
            if choice:
                index = rng.choice(choice)
                return Compacted(number, group.replica, group.generation, self._meta(index, group.entries[index].term))
        return self._append(number, group, settled=group == durable.groups.get(number))

    def _append(self, number: int, group: Replica, *, settled: bool) -> Append:
        rng, habits, old = self.rng, self.habits, group.hard_state
        term = old.term + (rng.random() < habits.election)
        begin, last, commit = group.meta.index, group.last, old.commit
        snapshot = None
        if rng.random() < habits.snapshot:
            snapshot = self._meta(rng.randint(max(begin, commit) + 1, last + 5), term)
            begin = last = commit = snapshot.index
        first = rng.randint(max(begin, commit) + 1, last + 1) if rng.random() < habits.truncation else last + 1
        entries = [
            Entry(index, term, 0, rng.randbytes(rng.randrange(habits.payload) * rng.choice((1,) * 19 + (15,))))
            for index in range(first, first + rng.choice(habits.entries))
        ]
        hard_state, long = None, len(group.entries) > habits.long
        if term > old.term or snapshot is not None or rng.random() < 0.3 or long:
            vote = old.vote if term == old.term and old.vote else rng.randrange(4)
            most = entries[-1].index if entries else last
            rises = rng.random() < habits.commit or long
            hard_state = HardState(term, vote, rng.randint(commit, most) if rises else commit)
        # A replica's generation is constant while its process runs, so all its waiting records share it.
        generation = group.generation + (settled and rng.random() < 0.02)
        return Append(number, group.replica, generation, snapshot, entries, hard_state)

    def _meta(self, index: int, term: int) -> SnapshotMeta:
        return SnapshotMeta(index, term, Conf(voters=(1, 2, 3), token=self.rng.randrange(99), info={1: b"store"}))


def _compactable(group: Replica, durable: Replica | None) -> list[int]:
    """Return the indexes up to which a log can be compacted.

    A compaction overtakes what waits to be written, so it speaks of what is durable and cannot be replaced any more.
    """
    if durable is None or durable.replica != group.replica:
        return []
    if durable is group:
        return sorted(group.entries)
    return [index for index in sorted(durable.entries) if group.meta.index < index <= durable.hard_state.commit]

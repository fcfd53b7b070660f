"""What a log should hold, said as simply as possible, and random records that could follow."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Self

from evenkeel_raft.core.types import EMPTY_META, Conf, Entry, HardState, SnapshotMeta
from evenkeel_raft.log.rebuild import Recovered
from evenkeel_raft.log.records import Append, Compacted, Created, Destroyed, Metastore, Record


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
        return deepcopy(self)

    def apply(self, record: Record) -> None:
        match record:
            case Created(group, replica, generation, label):
                self.groups[group] = Replica(replica, generation, label)
                self.retired.pop(group, None)
            case Destroyed(group, replica):
                del self.groups[group]
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
        for entry in record.entries:
            group.entries = {index: old for index, old in group.entries.items() if index < entry.index}
            group.entries[entry.index] = entry

    def equals(self, found: Recovered) -> bool:
        return self == from_recovered(found)


def from_recovered(found: Recovered) -> Model:
    """Say what was recovered in the model's words."""
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


class Writer:
    """Draws records that a correct sidecar might write next."""

    def __init__(self, rng: Random, *, groups: int = 4, payload: int = 60) -> None:
        self.rng = rng
        self.groups = groups
        self.payload = payload
        self.model = Model()  # with everything drawn, durable or not

    def draw(self) -> Record:
        record = self._draw()
        self.model.apply(record)
        return record

    def round(self) -> list[Record]:
        return [self.draw() for _ in range(self.rng.choice([0, 1, 1, 2, 3, 6]))]

    def _draw(self) -> Record:
        rng = self.rng
        number = rng.randrange(self.groups)
        group = self.model.groups.get(number)
        if rng.random() < 0.03:
            seen = self.model.metastore.revision if self.model.metastore else 0
            return Metastore(cluster=7, revision=seen + rng.randrange(3))
        if group is None:
            replica = self.model.retired.get(number, 0) + rng.randint(1, 3)
            return Created(number, replica, rng.choice([0, 0, 2]), rng.randbytes(rng.randrange(5)))
        kind = rng.random()
        if kind < 0.03:
            return Destroyed(number, group.replica)
        if kind < 0.25 and group.entries:
            index = rng.choice(sorted(group.entries))
            return Compacted(number, group.replica, group.generation, self._meta(index, group.entries[index].term))
        return self._append(number, group)

    def _append(self, number: int, group: Replica) -> Append:
        rng, old = self.rng, group.hard_state
        term = old.term + (rng.random() < 0.15)
        begin, last, commit = group.meta.index, group.last, old.commit
        snapshot = None
        if rng.random() < 0.07:
            snapshot = self._meta(rng.randint(max(begin, commit) + 1, last + 5), term)
            begin = last = commit = snapshot.index
        first = rng.randint(max(begin, commit) + 1, last + 1) if rng.random() < 0.25 else last + 1
        count = rng.choice([0, 1, 1, 2, 5])
        entries = [
            Entry(index, term, 0, rng.randbytes(rng.randrange(self.payload))) for index in range(first, first + count)
        ]
        hard_state = None
        if term > old.term or snapshot is not None or rng.random() < 0.3:
            vote = old.vote if term == old.term and old.vote else rng.randrange(4)
            hard_state = HardState(term, vote, rng.randint(commit, entries[-1].index if entries else last))
        generation = group.generation + (rng.random() < 0.02)
        return Append(number, group.replica, generation, snapshot, entries, hard_state)

    def _meta(self, index: int, term: int) -> SnapshotMeta:
        return SnapshotMeta(index, term, Conf(voters=(1, 2, 3), token=self.rng.randrange(99), info={1: b"store"}))

"""Log heads: the newest state of each group, against which every record is validated.

Records are validated when they are submitted, before anything is written. An invalid record would make the log
unrecoverable, change a vote, or reuse a replica id.
"""

from __future__ import annotations

from msgspec import Struct

from evenkeel_raft.core.raft_types import HardState
from evenkeel_raft.errors import RecordRefusedError
from evenkeel_raft.log.log_records import Append, Compacted, Created, Destroyed, Record

__all__ = ["Head", "Heads"]


class Head(Struct, gc=False):
    """The newest state of one replica's log."""

    replica: int
    generation: int
    base: int = 0
    last: int = 0
    term: int = 0
    vote: int = 0
    commit: int = 0


class Heads:
    """The heads of all groups. `retired` has the highest replica id ever held of each group no longer present."""

    def __init__(self) -> None:
        self.groups: dict[int, Head] = {}
        self.retired: dict[int, int] = {}

    def admit(self, record: Record) -> None:
        """Validate a record and update its group's head; raises `RecordRefusedError`."""
        if isinstance(record, Append):
            self._append(record)
        elif isinstance(record, Compacted):
            self._compact(record)
        elif isinstance(record, Created):
            self._create(record)
        elif isinstance(record, Destroyed):
            self._destroy(record)

    def _append(self, record: Append) -> None:
        head = self._head(record)
        base, last = head.base, head.last
        if record.snapshot is not None:
            base = last = record.snapshot.index
        last = _last_index(record, base, last, head.commit)
        state = record.hard_state
        if state is not None:
            _check_state(record, head, state, last)
            head.term, head.vote, head.commit = state.term, state.vote, state.commit
        head.generation, head.base, head.last = record.generation, base, last

    def _compact(self, record: Compacted) -> None:
        head = self._head(record)
        if not head.base <= record.meta.index <= head.last:
            raise _refused(record, f"cannot compact to {record.meta.index}; the log spans {head.base} to {head.last}")
        head.generation, head.base = record.generation, record.meta.index

    def _head(self, record: Append | Compacted) -> Head:
        head = self.groups.get(record.group)
        if head is None:
            raise _refused(record, "the volume does not hold the group")
        if record.replica != head.replica:
            raise _refused(record, f"the volume holds replica {head.replica} of the group")
        if record.generation < head.generation:
            raise _refused(record, f"generation {record.generation} is older than {head.generation}")
        return head

    def _create(self, record: Created) -> None:
        head = self.groups.get(record.group)
        if head is not None:
            raise _refused(record, f"replica {head.replica} of the group still exists")
        used = self.retired.get(record.group, -1)
        if record.replica <= used:
            raise _refused(record, f"replica ids up to {used} of the group were already used")
        self.retired.pop(record.group, None)
        self.groups[record.group] = Head(record.replica, record.generation)

    def _destroy(self, record: Destroyed) -> None:
        head = self.groups.get(record.group)
        if head is None or head.replica != record.replica:
            raise _refused(record, "the volume does not hold this replica")
        del self.groups[record.group]
        self.retired[record.group] = record.replica


def _check_state(record: Append, head: Head, state: HardState, last: int) -> None:
    if state.term < head.term:
        raise _refused(record, f"term {state.term} is older than {head.term}")
    if state.term == head.term and head.vote and state.vote != head.vote:
        raise _refused(record, f"it already voted for {head.vote} in term {state.term}, not for {state.vote}")
    if not head.commit <= state.commit <= last:
        raise _refused(record, f"commit index {state.commit} is not between {head.commit} and the log's end at {last}")


def _last_index(record: Append, base: int, last: int, commit: int) -> int:
    entries = record.entries
    if not entries:
        return last
    first, new_last = entries[0].index, entries[-1].index
    if not max(base, commit) < first <= last + 1:
        raise _refused(record, f"entry {first} does not fit a log from {base} to {last} committed up to {commit}")
    if new_last - first + 1 != len(entries):
        raise _refused(record, f"entries {first} to {new_last} are not consecutive")
    return new_last


def _refused(record: Append | Compacted | Created | Destroyed, why: str) -> RecordRefusedError:
    return RecordRefusedError(f"group {record.group}, replica {record.replica}: {why}")

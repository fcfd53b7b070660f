"""A model of a disk that loses unsynced writes.

Writes are queued in order and become durable one batch at a time. A crash keeps any prefix of the
queued records, in the order that `AppendBatch` specifies.
"""

from __future__ import annotations

from collections import deque

from evenkeel_raft.core.raft_types import EMPTY_META, Entry, HardState, SnapshotMeta
from evenkeel_raft.core.rawnode import AppendBatch

Record = SnapshotMeta | HardState | Entry


class Disk:
    """The log of one replica."""

    def __init__(self, meta: SnapshotMeta = EMPTY_META) -> None:
        self.meta = meta
        self.hard_state = HardState()
        self.entries: list[Entry] = []
        self.queue: deque[AppendBatch] = deque()

    @property
    def last_index(self) -> int:
        return self.meta.index + len(self.entries)

    def term(self, index: int) -> int:
        """Return the term of a durable entry, or -1."""
        at = index - self.meta.index
        if at == 0:
            return self.meta.term
        return self.entries[at - 1].term if 0 < at <= len(self.entries) else -1

    def sync(self) -> AppendBatch:
        """Make the oldest queued batch durable."""
        batch = self.queue.popleft()
        for record in records(batch):
            self._write(record)
        return batch

    def crash(self, survivors: int) -> None:
        """Lose the queue except for its first records."""
        queued = [record for batch in self.queue for record in records(batch)]
        for record in queued[:survivors]:
            self._write(record)
        self.queue.clear()

    def queued_records(self) -> int:
        return sum(len(records(batch)) for batch in self.queue)

    def compact(self, meta: SnapshotMeta) -> None:
        """Set where the log begins, and drop earlier entries."""
        del self.entries[: meta.index - self.meta.index]
        self.meta = meta

    def _write(self, record: Record) -> None:
        if isinstance(record, SnapshotMeta):
            self.meta, self.entries = record, []
        elif isinstance(record, HardState):
            self.hard_state = record
        elif record.index > self.meta.index:  # compaction may have overtaken a queued rewrite of old entries
            del self.entries[record.index - self.meta.index - 1 :]
            self.entries.append(record)


def records(batch: AppendBatch) -> list[Record]:
    """Return a batch's records in the order they are written."""
    found: list[Record] = []
    if batch.snapshot is not None:
        found.append(batch.snapshot)
    found.extend(batch.entries)
    if batch.hard_state is not None:
        found.append(batch.hard_state)
    return found

"""The in-memory log of one replica, after the last compacted entry, and its positions:

    offset        the last compacted entry, or the snapshot's index
    applied       the state machine applied it
    applying      emitted to be applied
    committed     never changes
    durable       on disk, and not about to be overwritten
    submitted     given to the log writer
    last_index

A write that completes after its entries were replaced must not mark the replacements as durable, even when index and
term are the same. So truncation lowers the index that every outstanding write may claim. Entries are applied only when
durable here, so a restarted state machine is never ahead of its own log.

Sizes are kept as running totals: the bytes between two indexes are one subtraction, so flow control needs no queue of
sizes. Only leaders need sizes, so a follower does not measure entries before it leads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from evenkeel_raft.core.errors import InvariantError
from evenkeel_raft.core.raft_messages import Message
from evenkeel_raft.core.raft_types import CONF, Entry, SnapshotMeta

__all__ = ["ENTRY_OVERHEAD", "UNKNOWN_TERM", "Log", "Write"]

ENTRY_OVERHEAD: Final = 32  # so that empty payloads count too
UNKNOWN_TERM: Final = -1


class Write(Struct, gc=False):
    """A batch submitted to the log writer and not yet durable; `last` is the index it makes durable.

    `deferred` are responses created after the submission that need nothing newer; they leave when it is durable.
    """

    token: int
    last: int
    commit: int
    vote_term: int
    snapshot: bool
    deferred: list[Message] = []


class Log:
    """Entries in memory and the positions above. The callers decide when a position may move."""

    __slots__ = (
        "_ends",
        "_entries",
        "_offset_end",
        "applied",
        "applied_end",
        "applying",
        "committed",
        "conf_indexes",
        "detached",
        "durable",
        "end",
        "last_index",
        "last_term",
        "measured",
        "needs_restore",
        "offset",
        "offset_term",
        "pending_snapshot",
        "restore_due",
        "submitted",
        "unwritten_snapshot",
        "writes",
    )

    def __init__(self, meta: SnapshotMeta, entries: Sequence[Entry], *, commit: int, applied: int | None) -> None:
        self._start_at(meta)
        self.detached = applied is None
        applied = meta.index if applied is None else applied
        if entries and (entries[0].index != meta.index + 1 or entries[-1].index != meta.index + len(entries)):
            raise InvariantError(
                f"log entries {entries[0].index} to {entries[-1].index} do not follow the snapshot at {meta.index}"
            )
        self.measured = False
        self.extend(entries)
        self.submitted = self.durable = self.last_index
        if max(applied, commit) > self.last_index:
            raise InvariantError(
                f"the log lost entries: it ends at {self.last_index}, but {commit} was committed and {applied} applied"
            )
        # A leader logs a second configuration only after it applied the first. So all configuration entries but the
        # last are committed, even if a torn write kept the entries and lost the hard state.
        confs_committed = self.conf_indexes[-2] if len(self.conf_indexes) > 1 else 0
        self.committed = max(commit, applied, meta.index, confs_committed)
        self.needs_restore = applied < meta.index
        self.applied = self.applying = applied
        self.applied_end = 0

    def _start_at(self, meta: SnapshotMeta) -> None:
        self._entries: list[Entry] = []
        self._ends: list[int] = []
        self._offset_end = self.end = 0
        self.measured = True
        self.conf_indexes: list[int] = []
        self.offset, self.offset_term = meta.index, meta.term
        self.last_index, self.last_term = meta.index, meta.term
        self.writes: deque[Write] = deque()
        self.unwritten_snapshot: SnapshotMeta | None = None  # not submitted yet
        self.pending_snapshot: SnapshotMeta | None = None  # not durable yet
        self.restore_due: SnapshotMeta | None = None

    # Queries

    def term(self, index: int) -> int:
        """Return the term of an entry, or UNKNOWN_TERM outside [offset, last_index]."""
        at = index - self.offset
        if at > 0:
            return self._entries[at - 1].term if index <= self.last_index else UNKNOWN_TERM
        return self.offset_term if at == 0 else UNKNOWN_TERM

    def entry(self, index: int) -> Entry:
        """Return an entry after `offset`."""
        return self._entries[index - self.offset - 1]

    def entries(self, after: int, upto: int) -> list[Entry]:
        """Return the entries in (after, upto]."""
        return self._entries[after - self.offset : upto - self.offset]

    def batch(self, first: int, max_bytes: int) -> list[Entry]:
        """Return entries from `first` on, at most `max_bytes` of them but at least one if there is one."""
        at = first - self.offset - 1
        limit = self.end_of(first - 1) + max_bytes
        if self.end <= limit:
            return self._entries[at:] if at else self._entries.copy()
        return self._entries[at : max(bisect_right(self._ends, limit, at), at + 1)]

    def size(self, after: int, upto: int) -> int:
        """Return the bytes of the entries in (after, upto]."""
        return self.end_of(upto) - self.end_of(after)

    def end_of(self, index: int) -> int:
        """Return the running total of bytes up to an entry."""
        if not self.measured:
            self.measure()
        at = index - self.offset
        return self._ends[at - 1] if at > 0 else self._offset_end

    def index_before(self, size: int) -> int:
        """Return the last applied index with at least `size` bytes of log after it; `offset` if there are fewer."""
        limit = self.end_of(self.last_index) - size
        return min(self.offset + bisect_right(self._ends, limit), max(self.applied, self.offset))

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a candidate's log with this last entry is at least as up to date as this one."""
        return last_term > self.last_term or (last_term == self.last_term and last_index >= self.last_index)

    def find_conflict_by_term(self, index: int, term: int) -> int:
        """Return the highest index <= `index` whose term is <= `term`; no entry above it can match."""
        index = min(index, self.last_index)
        if index < self.offset:
            return index
        at = bisect_right(self._entries, term, hi=index - self.offset, key=_term_of)
        return self.offset + at if at or self.offset_term <= term else self.offset - 1

    def conf_in(self, after: int, upto: int) -> bool:
        """Whether a configuration entry lies in (after, upto]."""
        indexes = self.conf_indexes
        if not indexes or indexes[-1] <= after:
            return False
        return indexes[bisect_right(indexes, after)] <= upto

    def measure(self) -> None:
        """Bring the running totals up to date."""
        ends = self._ends
        end = ends[-1] if ends else self._offset_end
        for entry in self._entries[len(ends) :]:
            end += len(entry.data) + ENTRY_OVERHEAD
            ends.append(end)
        self.end, self.measured = end, True
        self.applied_end = self.end_of(self.applied)

    # State machine

    @property
    def idle(self) -> bool:
        """Whether nothing is left to apply."""
        return self.detached or self.applied == self.last_index

    @property
    def lacks_state(self) -> bool:
        """Whether the state machine is behind the log's beginning: it waits for a snapshot or restores one."""
        return self.applied < self.offset

    @property
    def stateless(self) -> bool:
        """Whether the state machine is detached or behind the log's beginning."""
        return self.detached or self.lacks_state

    def attach(self, applied: int) -> None:
        """Attach a state machine that durably applied up to an index; a snapshot that is due is still restored."""
        self.detached = False
        if self.restore_due is not None and self.restore_due.index <= applied:
            self.restore_due = None
        due = self.restore_due or self.pending_snapshot
        self.needs_restore = applied < self.offset and due is None
        self.applied = applied
        self.applying = applied if due is None else due.index
        if self.measured:
            self.applied_end = self.end_of(applied)

    # Appending

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append entries that follow the last one."""
        if len(entries) == 1:
            self.append(entries[0])
            return
        if not entries:
            return
        self._entries.extend(entries)
        for entry in entries:
            if entry.kind == CONF:
                self.conf_indexes.append(entry.index)
        last = entries[-1]
        self.last_index, self.last_term = last.index, last.term
        if self.measured:
            self.measure()

    def append(self, entry: Entry) -> None:
        """Append one entry that follows the last one."""
        self._entries.append(entry)
        if self.measured:
            self.end += len(entry.data) + ENTRY_OVERHEAD
            self._ends.append(self.end)
        self.last_index, self.last_term = entry.index, entry.term
        if entry.kind == CONF:
            self.conf_indexes.append(entry.index)

    def maybe_append(self, prev_index: int, prev_term: int, entries: list[Entry]) -> bool:
        """Append a leader's entries after (prev_index, prev_term); returns false if this log lacks that entry.

        Matching entries stay: a delayed message that ends before this log must not truncate it.
        """
        self.measured = False
        if prev_index == self.last_index and prev_term == self.last_term:
            self.extend(entries)
            return True
        if self.term(prev_index) != prev_term:
            return False
        for at, entry in enumerate(entries):
            if self.term(entry.index) != entry.term:
                self._truncate(entry.index)
                self.extend(entries[at:])
                break
        return True

    def _truncate(self, first: int) -> None:
        if first > self.last_index:
            return
        if first <= self.committed:
            raise InvariantError(f"a leader's entry {first} conflicts with the log committed up to {self.committed}")
        keep = first - 1 - self.offset
        del self._entries[keep:]
        del self._ends[keep:]
        del self.conf_indexes[bisect_left(self.conf_indexes, first) :]
        self.last_index, self.last_term = first - 1, self.term(first - 1)
        self._lower_claims(first - 1)

    def _lower_claims(self, index: int) -> None:
        """Stop outstanding writes from marking anything above the index as durable."""
        self.submitted = min(self.submitted, index)
        self.durable = min(self.durable, index)
        for write in self.writes:
            write.last = min(write.last, index)

    # Writing

    def submit_entries(self) -> list[Entry]:
        """Return the entries to submit to the log writer; they replace its log from the first of them on."""
        entries = self._entries[self.submitted - self.offset :] if self.submitted < self.last_index else []
        self.submitted = self.last_index
        return entries

    def snapshot_written(self, write: Write) -> None:
        """Schedule the restore of a snapshot that is now durable, unless a newer one replaced it."""
        if self.pending_snapshot is not None and write.last >= self.pending_snapshot.index:
            self.restore_due, self.pending_snapshot = self.pending_snapshot, None

    # Compaction

    def compact(self, index: int) -> None:
        """Drop entries up to the index."""
        drop = index - self.offset
        if drop <= 0:
            return
        self.offset_term = self.term(index)
        self._offset_end = self._ends[drop - 1] if drop <= len(self._ends) else 0
        del self._entries[:drop]
        del self._ends[:drop]
        del self.conf_indexes[: bisect_right(self.conf_indexes, index)]
        self.offset = index

    def restore(self, meta: SnapshotMeta) -> None:
        """Replace the log by a snapshot, which is not durable until its write completes."""
        writes = self.writes
        self._start_at(meta)
        self.writes = writes
        self._lower_claims(0)
        self.submitted = self.committed = self.applying = meta.index
        self.unwritten_snapshot = self.pending_snapshot = meta
        self.needs_restore = False
        self.applied_end = 0


def _term_of(entry: Entry) -> int:
    return entry.term

"""The log of one replica, from the last compacted entry on, and how far it is durable, committed and applied.

    offset        last_index of what was compacted or came with a snapshot
    applied       the state machine has it
    applying      handed out to be applied
    committed     never changes any more
    durable       on disk, and not about to be overwritten
    handed        given to the log writer
    last_index

`durable` is kept by position, not by (index, term): a write that completes after its entries were replaced must not
vouch for the replacements, even when index and term look the same. So truncation lowers what every outstanding write
may claim. Entries are applied only when durable here, so a restarted state machine is never ahead of its own log.

Sizes are kept as running totals: what lies between two indexes is one subtraction, which is how flow control knows
the bytes in flight without a queue of its own. Only leaders ask for sizes, so a follower does not measure what it is
sent before it leads.
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

ENTRY_OVERHEAD: Final = 32  # so that empty payloads are not free
UNKNOWN_TERM: Final = -1


class Write(Struct, gc=False):
    """A batch given to the log writer and not yet reported durable; `last` is what it may vouch for.

    `late` are responses that came up after it was given away, vouch for nothing newer, and leave when it is durable.
    """

    token: int
    last: int
    commit: int
    vote_term: int
    snapshot: bool
    deferred: list[Message] = []


class Log:
    """Entries in memory and the positions above. Who may move a position is up to the callers."""

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
                f"log entries {entries[0].index}..{entries[-1].index} do not follow the snapshot at {meta.index}"
            )
        self.measured = False
        self.extend(entries)
        self.submitted = self.durable = self.last_index
        if max(applied, commit) > self.last_index:
            raise InvariantError(
                f"{commit} was committed and {applied} applied, but the log ends at {self.last_index}: it lost entries"
            )
        # A second configuration is logged only once the leader has applied the first, so all configuration entries but
        # the last are committed, whatever the hard state says: a torn write may have kept entries and lost it.
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
        self.unwritten_snapshot: SnapshotMeta | None = None  # not handed out yet
        self.pending_snapshot: SnapshotMeta | None = None  # not durable yet
        self.restore_due: SnapshotMeta | None = None

    # Looking

    def term(self, index: int) -> int:
        """Return the term of an entry, or UNKNOWN_TERM outside [offset, last_index]."""
        at = index - self.offset
        if at > 0:
            return self._entries[at - 1].term if index <= self.last_index else UNKNOWN_TERM
        return self.offset_term if at == 0 else UNKNOWN_TERM

    def entry(self, index: int) -> Entry:
        """Return an entry that is in memory."""
        return self._entries[index - self.offset - 1]

    def entries(self, after: int, upto: int) -> list[Entry]:
        """Return the entries in (after, upto]."""
        return self._entries[after - self.offset : upto - self.offset]

    def batch(self, first: int, max_bytes: int) -> list[Entry]:
        """Return entries from `first` on, at least one if there is one, and no more than fit."""
        at = first - self.offset - 1
        limit = self.end_of(first - 1) + max_bytes
        if self.end <= limit:
            return self._entries[at:] if at else self._entries.copy()
        return self._entries[at : max(bisect_right(self._ends, limit, at), at + 1)]

    def size(self, after: int, upto: int) -> int:
        """Return the bytes of the entries in (after, upto]."""
        return self.end_of(upto) - self.end_of(after)

    def end_of(self, index: int) -> int:
        """Return the running total after an entry."""
        if not self.measured:
            self.measure()
        at = index - self.offset
        return self._ends[at - 1] if at > 0 else self._offset_end

    def index_before(self, size: int) -> int:
        """Return the last applied index after which the log has at least so many bytes, or its beginning."""
        limit = self.end_of(self.last_index) - size
        return min(self.offset + bisect_right(self._ends, limit), max(self.applied, self.offset))

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log ending so is at least as new as this one: the vote's condition."""
        return last_term > self.last_term or (last_term == self.last_term and last_index >= self.last_index)

    def find_conflict_by_term(self, index: int, term: int) -> int:
        """Return the highest index <= `index` whose term is <= `term`: nothing above can match such a log."""
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

    # The state machine

    @property
    def idle(self) -> bool:
        """Whether there is nothing left that could be applied."""
        return self.detached or self.applied == self.last_index

    @property
    def lacks_state(self) -> bool:
        """Whether the state machine does not have what the log begins with: it waits for a snapshot or restores one."""
        return self.applied < self.offset

    @property
    def stateless(self) -> bool:
        """Whether the state machine is away, or does not have what the log begins with."""
        return self.detached or self.lacks_state

    def attach(self, applied: int) -> None:
        """A state machine is there, and has durably applied this much; a snapshot that is due still comes to it."""
        self.detached = False
        if self.restore_due is not None and self.restore_due.index <= applied:
            self.restore_due = None
        due = self.restore_due or self.pending_snapshot
        self.needs_restore = applied < self.offset and due is None
        self.applied = applied
        self.applying = applied if due is None else due.index
        if self.measured:
            self.applied_end = self.end_of(applied)

    # Growing

    def extend(self, entries: Sequence[Entry]) -> None:
        """Add entries that follow the last one."""
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
        """Add one entry that follows the last one."""
        self._entries.append(entry)
        if self.measured:
            self.end += len(entry.data) + ENTRY_OVERHEAD
            self._ends.append(self.end)
        self.last_index, self.last_term = entry.index, entry.term
        if entry.kind == CONF:
            self.conf_indexes.append(entry.index)

    def maybe_append(self, prev_index: int, prev_term: int, entries: list[Entry]) -> bool:
        """Add a leader's entries after (prev_index, prev_term); false if this log does not have that entry.

        What is already here stays: a delayed message that is shorter than the log must not cut it.
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
            raise InvariantError(f"a leader's entry at {first} conflicts with the log committed up to {self.committed}")
        keep = first - 1 - self.offset
        del self._entries[keep:]
        del self._ends[keep:]
        del self.conf_indexes[bisect_left(self.conf_indexes, first) :]
        self.last_index, self.last_term = first - 1, self.term(first - 1)
        self._lower_claims(first - 1)

    def _lower_claims(self, index: int) -> None:
        """Keep outstanding writes from vouching for anything above the index."""
        self.submitted = min(self.submitted, index)
        self.durable = min(self.durable, index)
        for write in self.writes:
            write.last = min(write.last, index)

    # Writing

    def submit_entries(self) -> list[Entry]:
        """Return the entries the log writer has not seen; they replace what it holds from the first of them on."""
        entries = self._entries[self.submitted - self.offset :] if self.submitted < self.last_index else []
        self.submitted = self.last_index
        return entries

    def snapshot_written(self, write: Write) -> None:
        """Let a snapshot that is durable now be restored, unless a newer one has taken its place."""
        if self.pending_snapshot is not None and write.last >= self.pending_snapshot.index:
            self.restore_due, self.pending_snapshot = self.pending_snapshot, None

    # Shrinking

    def compact(self, index: int) -> None:
        """Forget entries up to the index."""
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
        """Replace everything by a snapshot. Nothing of it is durable until its write is."""
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

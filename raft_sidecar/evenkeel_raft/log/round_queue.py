"""Records waiting to be written, and the choice of the next round.

The records of a group stay in order. Otherwise small records do not wait for large ones: a large append is split into
pieces, and a round takes one piece and the small records behind it. On a full disk only records without entries are
written.

A compaction may overtake appends of its group, because it refers only to entries that are already durable, and it frees
space. Destroying a replica drops its waiting records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from evenkeel_raft.log.log_records import Append, Compacted, Destroyed, Metastore, Record, entry_sizes

__all__ = ["Draft", "Rounds", "Submission"]

_OVERHEAD: Final = 32
_LEAST_SHARES: Final = 8


class Submission:
    """A submitted record and its callbacks. `written` counts the entries that are already durable."""

    __slots__ = ("done", "dropped", "group", "record", "size", "written")

    def __init__(
        self,
        record: Record,
        done: Callable[[], None] | None = None,
        dropped: Callable[[], None] | None = None,
    ) -> None:
        self.record = record
        self.done = done
        self.dropped = dropped
        self.group = -1 if isinstance(record, Metastore) else record.group
        self.size = _OVERHEAD + (sum(entry_sizes(record.entries)) if isinstance(record, Append) else 0)
        self.written = 0

    @property
    def urgent(self) -> bool:
        """Whether the record has no entries."""
        return not (isinstance(self.record, Append) and self.record.entries)

    def piece(self, share: int) -> Piece:
        """Return the next piece to write, of about `share` bytes."""
        record = self.record
        if not isinstance(record, Append) or (self.size <= share and not self.written):
            return Piece(self, record, self.size, True)
        first, size = self.written, _OVERHEAD
        end = first
        while end < len(record.entries) and (end == first or size < share):
            size += sum(entry_sizes(record.entries[end : end + 1]))
            end += 1
        last = end == len(record.entries)
        # As in an `AppendBatch`, the hard state comes last because it refers to all of the entries.
        snapshot = None if first else record.snapshot
        hard_state = record.hard_state if last else None
        part = Append(record.group, record.replica, record.generation, snapshot, record.entries[first:end], hard_state)
        return Piece(self, part, size, last)


class Piece(Struct, frozen=True, gc=False):
    """A part of a submission; `last` if it is the final one."""

    submission: Submission
    record: Record
    size: int
    last: bool


Draft = list[Piece]


class Rounds:
    """Submissions in the order they came."""

    def __init__(self, round_bytes: int) -> None:
        self._round_bytes = round_bytes
        self._waiting: deque[Submission] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, submission: Submission) -> list[Submission]:
        """Add a submission; returns the waiting ones that it drops."""
        dropped: list[Submission] = []
        if isinstance(submission.record, Destroyed):
            dropped = [waiting for waiting in self._waiting if _ended_by(waiting, submission)]
            self._remove(dropped)
        self._waiting.append(submission)
        return dropped

    def draft(self, *, urgent: bool) -> Draft:
        """Return the pieces for the next round; `urgent` leaves out records with entries."""
        room = self._round_bytes
        share = max(room // _LEAST_SHARES, room // max(1, len(self._waiting)))
        draft: Draft = []
        behind: set[int] = set()
        for submission in self._waiting:
            group = submission.group
            if group in behind and not isinstance(submission.record, Compacted):
                continue
            if urgent and not submission.urgent:
                behind.add(group)
                continue
            piece = submission.piece(share)
            if piece.size > room and draft:
                behind.add(group)
                if room < share // _LEAST_SHARES:
                    break
                continue
            draft.append(piece)
            room -= piece.size
            if not piece.last:
                behind.add(group)
        return draft

    def written(self, draft: Draft) -> list[Submission]:
        """Record that a round is durable; returns the submissions that are now completely durable."""
        done = []
        for piece in draft:
            if piece.last:
                done.append(piece.submission)
            elif isinstance(piece.record, Append):
                piece.submission.written += len(piece.record.entries)
        self._remove(done)
        return done

    def _remove(self, gone: list[Submission]) -> None:
        if len(gone) == len(self._waiting):
            self._waiting.clear()
        elif gone:
            numbers = set(map(id, gone))
            self._waiting = deque(waiting for waiting in self._waiting if id(waiting) not in numbers)


def _ended_by(waiting: Submission, end: Submission) -> bool:
    return waiting.group == end.group and not isinstance(waiting.record, Destroyed)

"""The shared log: a round of records is durable when `write` returns. Synchronous and deterministic over a `Disk`.

One thread owns it. Every disk error except a full disk is final: the page cache may show data that the disk does not
have, so only a recovery from disk can establish what is durable.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from typing import Final, Self

from msgspec import Struct

from evenkeel_raft.errors import DiskFullError, LogError, LogFailedError
from evenkeel_raft.log.log_disk import Disk
from evenkeel_raft.log.log_frames import HEADER_BYTES, Draft, Layout
from evenkeel_raft.log.log_rebuild import Recovered, rebuild_heads, rebuild_index, recovered
from evenkeel_raft.log.log_records import Append, Record, StoredRecord
from evenkeel_raft.log.log_recovery import Scan, scan
from evenkeel_raft.log.log_volume import open_volume
from evenkeel_raft.log.segment_collector import RECORD_COST, Collector
from evenkeel_raft.log.segments import Segment, Slots, write_or_full

__all__ = ["LogSettings", "LogStats", "SharedLog"]

# The minimum to copy per round while the log is too long, so that small rounds do not cause many small copies.
_LEAST_MOVE: Final = 64 << 10
# Spares that must remain after a write. Entries leave room for records without entries, such as those that destroy a
# replica. Both leave room for collection, which may have to copy the whole oldest segment before its file is free.
_ENTRIES_LEAVE: Final = 2
_OTHERS_LEAVE: Final = 1
_COPIES_LEAVE: Final = 0
# The log is never too long with fewer segments than this.
_FEW: Final = 3


class LogSettings(Struct, frozen=True):
    """Sizes. `round_bytes` is about the amount written per fsync; more would let one group delay the others."""

    segment_bytes: int = 32 << 20
    round_bytes: int = 2 << 20
    garbage_factor: float = 2.0
    """The permitted ratio of the log's size to its live bytes."""


class LogStats(Struct, frozen=True):
    """Statistics of a log."""

    rounds: int
    segments: int
    disk_bytes: int
    live_bytes: int
    moved_bytes: int


class SharedLog:
    """The log of one volume."""

    def __init__(self, disk: Disk, layout: Layout, found: Scan, settings: LogSettings) -> None:
        self._disk = disk
        self._layout = layout
        self.settings = settings
        self._index = rebuild_index(found)
        self._collector = Collector(disk, layout, self._index)
        self._slots = Slots(disk, size=settings.segment_bytes, wanted=_ENTRIES_LEAVE + 1)
        for name in found.spares:
            self._slots.adopt(name, spare=True)
        for segment in found.segments:
            self._slots.adopt(segment.name, spare=False)
        segments = self._index.segments
        self._round = segments[-1].next_round if segments else 1
        self._number = segments[-1].number + 1 if segments else 1
        self._used = sum(segment.size for segment in segments)
        self._last_cost = 0
        self._moved = 0
        self._short = False
        self._failure: LogError | None = None
        self.heads = rebuild_heads(found)

    @classmethod
    def open(
        cls, disk: Disk, settings: LogSettings | None = None, *, volume: str | None = None
    ) -> tuple[Self, Recovered]:
        """Recover the log on a disk, or create one; returns it with its contents.

        `volume` is the id that the log must have, or gets if it is new.
        """
        try:
            identity = open_volume(disk, volume)
            layout = Layout(identity.bytes)
            with _without_collector():
                found = scan(disk, layout)
                return cls(disk, layout, found, settings or LogSettings()), recovered(found, str(identity))
        except OSError as error:
            disk.close()
            raise LogFailedError(f"cannot read the log: {error}; check the disk") from error
        except BaseException:
            disk.close()
            raise

    # Writing

    def write(self, records: Sequence[Record]) -> None:
        """Make a round of records durable, all or none; `heads` must have admitted them.

        `DiskFullError` leaves the log unchanged, and the call may be retried. Any other `LogError` is final.
        """
        urgent = not any(isinstance(record, Append) and record.entries for record in records)
        excess = self._excess()
        budget = min(max(_LEAST_MOVE, 2 * excess * self._last_cost), self.settings.round_bytes) if excess else 0
        with self._failures_are_final():
            self._write(records, reserve=_OTHERS_LEAVE if urgent else _ENTRIES_LEAVE, budget=budget)

    def maintain(self) -> bool:
        """Run one step of background work: collection or preparing spares; returns whether there is more."""
        try:
            with self._failures_are_final():
                if not self._excess():
                    return self._slots.prepare()
                self._write((), reserve=_COPIES_LEAVE, budget=self.settings.round_bytes)
                return True
        except DiskFullError:
            return False

    @property
    def needs_maintenance(self) -> bool:
        """Whether `maintain` has work."""
        return bool(self._excess()) or self._slots.unprepared

    def has_room(self) -> bool:
        """Whether there is space for entries of at least half a segment."""
        segments = self._index.segments
        roomy = bool(segments) and 2 * (segments[-1].size - segments[-1].end) > self.settings.segment_bytes
        try:
            with self._failures_are_final():
                self._slots.ensure_spares(_ENTRIES_LEAVE + (not roomy))
        except DiskFullError:
            return False
        return True

    def close(self, *, clean: bool = True) -> None:
        """Close the disk; a clean close writes an empty round first, so that damage to the last one is detected."""
        if clean and self._last_cost:
            with suppress(LogError):
                self.write(())
        self._disk.close()

    def stats(self) -> LogStats:
        """Return the log's statistics."""
        return LogStats(
            rounds=self._round - 1,
            segments=len(self._index.segments),
            disk_bytes=self._used + len(self._slots.spares) * self.settings.segment_bytes,
            live_bytes=self._index.live,
            moved_bytes=self._moved,
        )

    def _write(self, records: Sequence[StoredRecord], *, reserve: int, budget: int) -> None:
        collected = self._collector.collect(budget) if budget else None
        if collected is not None:
            # Copies come first: they precede this round's records, which may supersede them.
            records = [*collected.records, *records]
        draft = Draft(records)
        segment = self._place(len(draft), reserve=reserve)
        floor = collected.floor if collected is not None else self._index.segments[0].first_round
        self._put(draft, segment, floor)
        self._index.apply(records, draft.sizes, round_=self._round - 1)
        if collected is not None:
            self._moved += sum(draft.sizes[: len(collected.records)])
            self._collector.advance(collected)
            self._free(floor)

    def _place(self, need: int, *, reserve: int) -> Segment:
        """Return the segment for the next round; raises `DiskFullError` without room for it and the reserve."""
        segments = self._index.segments
        if segments and segments[-1].size - segments[-1].end >= need:
            self._slots.ensure_spares(reserve)
            return segments[-1]
        name, size = self._slots.take(need, reserve=reserve)
        segments.append(Segment(number=self._number, name=name, size=size, first_round=self._round))
        self._number += 1
        self._used += size
        return segments[-1]

    def _put(self, draft: Draft, segment: Segment, floor: int) -> None:
        offset = segment.end
        data = draft.bind(self._layout, segment=segment.number, offset=offset, round_=self._round, floor=floor)
        if segment.blank:
            # A header does not prove its first round durable, so it carries the floor before that round.
            durable = self._index.segments[0].first_round
            header = self._layout.header(
                segment=segment.number, size=segment.size, first_round=self._round, floor=durable
            )
            offset, data = 0, bytearray(header) + data
        write_or_full(self._disk, segment.name, offset, data)
        self._disk.sync(segment.name)
        segment.add_round(offset + len(data))
        self._round += 1
        self._last_cost = len(draft) + RECORD_COST * len(draft.sizes)

    def _free(self, floor: int) -> None:
        segments = self._index.segments
        while len(segments) > 1 and segments[1].first_round <= floor:
            segment = segments[0]
            if segment.live:
                raise LogFailedError(
                    f"{segment.name}: {segment.live} live bytes were not copied before the file was freed. This is a "
                    "bug: report it, and restart the process to recover from disk"
                )
            segments.pop(0)
            self._used -= segment.size
            self._slots.release(segment.name, segment.size)

    def _excess(self) -> int:
        """Return by how many segments the log is too long."""
        size, live, used = self.settings.segment_bytes, self._index.live, self._used
        if len(self._index.segments) < 2:
            return 0
        allowed = self.settings.garbage_factor * live + _FEW * size
        if used > allowed:
            return ceil((used - allowed) / size)
        active = self._index.segments[-1]
        dead = used - live - (active.size - active.end) - len(self._index.segments) * HEADER_BYTES
        # The unused ends of segments count as dead too, but cannot be reclaimed.
        return int(self._short and self._slots.lacks_spares and 8 * dead > used)

    @contextmanager
    def _failures_are_final(self) -> Iterator[None]:
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except DiskFullError:
            self._short = True
            raise
        except LogError as error:
            self._failure = error
            raise
        except OSError as error:
            self._failure = LogFailedError(f"the disk failed; restart the process to recover: {error}")
            raise self._failure from error
        except Exception as bug:
            # The index may have recorded only a part of a durable round.
            self._failure = LogFailedError(f"the log failed; restart the process to recover from disk: {bug!r}")
            raise self._failure from bug


@contextmanager
def _without_collector() -> Iterator[None]:
    """Suspend Python's garbage collector while recovery allocates millions of objects that stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

"""The log itself: rounds in, durable when `write` returns. Synchronous and deterministic over a `Disk`.

One thread owns it. Whatever goes wrong with the disk, a lack of space aside, is final: the page cache may show what
the disk does not have, so nothing but a recovery from the disk can tell what is durable.
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

# Copied at least per round while the log is too long, so that rounds of a few bytes do not make many small copies.
_LEAST_MOVE: Final = 64 << 10
# Spares that must remain: entries leave room for records without any, such as those that end something; both leave
# room to collect in, for the oldest segment may have to be copied as a whole before its file is free.
_ENTRIES_LEAVE: Final = 2
_OTHERS_LEAVE: Final = 1
_COPIES_LEAVE: Final = 0
# Used below this many segments, the log is never too long.
_FEW: Final = 3


class LogSettings(Struct, frozen=True):
    """Sizes. `round_bytes` is about how much one fsync carries: more would let one group hold up the others."""

    segment_bytes: int = 32 << 20
    round_bytes: int = 2 << 20
    garbage_factor: float = 2.0
    """How long the log may be, in terms of what is live in it."""


class LogStats(Struct, frozen=True):
    """What there is to see of a log."""

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
            self._slots.found(name, spare=True)
        for segment in found.segments:
            self._slots.found(segment.name, spare=False)
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
        """Recover the log on a disk, or begin a new one; returns it with what it holds.

        `volume` is the id the log must have, or gets if it is new.
        """
        try:
            identity = open_volume(disk, volume)
            layout = Layout(identity.bytes)
            with _without_collector():
                found = scan(disk, layout)
                return cls(disk, layout, found, settings or LogSettings()), recovered(found, str(identity))
        except OSError as error:
            disk.close()
            raise LogFailedError(f"the log cannot be read: {error}") from error
        except BaseException:
            disk.close()
            raise

    # Writing

    def write(self, records: Sequence[Record]) -> None:
        """Make a round of records durable, all or none; `heads` must have admitted them.

        `DiskFullError` leaves the log as it was, to be tried again. Any other `LogError` is final.
        """
        urgent = not any(isinstance(record, Append) and record.entries for record in records)
        excess = self._excess()
        budget = min(max(_LEAST_MOVE, 2 * excess * self._last_cost), self.settings.round_bytes) if excess else 0
        with self._failures_are_final():
            self._write(records, reserve=_OTHERS_LEAVE if urgent else _ENTRIES_LEAVE, budget=budget)

    def tidy(self) -> bool:
        """Do one step of what can wait until nothing else is to be done; whether there is more."""
        try:
            with self._failures_are_final():
                if not self._excess():
                    return self._slots.prepare()
                self._write((), reserve=_COPIES_LEAVE, budget=self.settings.round_bytes)
                return True
        except DiskFullError:
            return False

    @property
    def untidy(self) -> bool:
        """Whether `tidy` has something to do."""
        return bool(self._excess()) or self._slots.unprepared

    def has_room(self) -> bool:
        """Whether entries can be written, half a segment of them or more."""
        segments = self._index.segments
        roomy = bool(segments) and 2 * (segments[-1].size - segments[-1].end) > self.settings.segment_bytes
        try:
            with self._failures_are_final():
                self._slots.secure(_ENTRIES_LEAVE + (not roomy))
        except DiskFullError:
            return False
        return True

    def close(self, *, clean: bool = True) -> None:
        """Let go of the disk, after an empty round if all is well: should the last one be damaged later, it shows."""
        if clean and self._last_cost:
            with suppress(LogError):
                self.write(())
        self._disk.close()

    def stats(self) -> LogStats:
        """Describe the log."""
        return LogStats(
            rounds=self._round - 1,
            segments=len(self._index.segments),
            disk_bytes=self._used + len(self._slots.spares) * self.settings.segment_bytes,
            live_bytes=self._index.live,
            moved_bytes=self._moved,
        )

    def _write(self, records: Sequence[StoredRecord], *, reserve: int, budget: int) -> None:
        harvest = self._collector.harvest(budget) if budget else None
        if harvest is not None:
            # Copies first: they say what was before this round, and its records may end it.
            records = [*harvest.records, *records]
        draft = Draft(records)
        segment = self._place(len(draft), reserve=reserve)
        floor = harvest.floor if harvest is not None else self._index.segments[0].first_round
        self._put(draft, segment, floor)
        self._index.apply(records, draft.sizes, round_=self._round - 1)
        if harvest is not None:
            self._moved += sum(draft.sizes[: len(harvest.records)])
            self._collector.reaped(harvest)
            self._free(floor)

    def _place(self, need: int, *, reserve: int) -> Segment:
        """Return the segment that the next round goes to, when there is room for it and for the reserve."""
        segments = self._index.segments
        if segments and segments[-1].size - segments[-1].end >= need:
            self._slots.secure(reserve)
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
            # A header is no proof of its own first round, so it tells of the floor before that.
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
                    f"{segment.name}: {segment.live} live bytes were not copied before the file was freed; this is a "
                    "bug of the log: report it, and restart the process to recover from the disk"
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
        # The ends of segments stay empty, so a part of what looks dead cannot be won.
        return int(self._short and self._slots.wanting and 8 * dead > used)

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
            self._failure = LogFailedError(f"the disk failed, end this process and recover: {error}")
            raise self._failure from error
        except Exception as bug:
            # A round may be durable of which the index knows only a part.
            self._failure = LogFailedError(f"the log failed, end this process and recover: {bug!r}")
            raise self._failure from bug


@contextmanager
def _without_collector() -> Iterator[None]:
    """Do not look for garbage again and again while millions of objects come to stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

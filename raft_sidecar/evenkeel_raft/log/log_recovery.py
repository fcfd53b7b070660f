"""Recovery of the log from its files: durable rounds, torn writes and damage.

A round is written only when the previous one is durable. So at most one round, the newest, is ever torn, and a readable
round proves that all earlier ones were durable. Reading stops at the first unreadable round. If a later round is
readable, or a later segment begins after it, durable data is damaged and the log is refused.

Nothing proves that the newest readable round is durable: after a failed fsync it may exist in the page cache alone. So
it is written and synced again before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Final

from msgspec import Struct

from evenkeel_raft.errors import CorruptLogError, WrongVolumeError
from evenkeel_raft.log.log_disk import Disk
from evenkeel_raft.log.log_frames import (
    FIRST_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    Frame,
    Header,
    Layout,
    first_frame,
    header_format,
    parse_header,
)
from evenkeel_raft.log.log_replay import ContradictionError, Replay
from evenkeel_raft.log.log_volume import refuse_newer
from evenkeel_raft.log.segments import Segment, is_slot

__all__ = ["Scan", "scan"]

_REMEDY: Final = "replace this store's volume; the leaders then restore its replicas"


class Scan(Struct, frozen=True):
    """The contents of the log's files: the records of the segments in use, and the spare files."""

    replay: Replay
    segments: list[Segment]
    spares: list[str]


class _File(Struct, frozen=True):
    """A file, its segment's header if intact, and the segment number in its first frame."""

    name: str
    header: Header | None
    claim: int


class _Held(Struct, frozen=True):
    """A file with a segment's header."""

    name: str
    header: Header


class _Stop(Struct, frozen=True):
    """Where reading a segment ended, and the round expected there."""

    offset: int
    round: int
    floor: int


def scan(disk: Disk, layout: Layout) -> Scan:
    """Read the log, make everything that was read durable, and make torn rounds unreadable for good."""
    files = [_file(disk, layout, name) for name in sorted(disk.names()) if is_slot(name)]
    ordered = _in_order([_Held(file.name, file.header) for file in files if file.header is not None])
    needed = _needed(disk, layout, ordered) if ordered else []
    replay, segments = Replay(), []
    for held, after in zip_longest(needed, needed[1:]):
        data = _read(disk, held)
        segment, stop = _read_segment(layout, held, data, replay)
        if after is not None:
            _check_joint(held, stop, after)
        else:
            _check_tail(layout, held, stop, data)
            _settle(disk, layout, segment, data)
        segments.append(segment)
    in_use = {held.name for held in needed}
    spares = [file for file in files if file.name not in in_use]
    for file in spares:
        _check_stray(disk, layout, file, segments[-1].next_round if segments else 1)
        if file.claim > (segments[-1].number if segments else 0):
            _erase(disk, file.name, HEADER_BYTES, disk.size(file.name))
            disk.sync(file.name)
    return Scan(replay, segments, [file.name for file in spares])


def _file(disk: Disk, layout: Layout, name: str) -> _File:
    """Read a file's header, or derive it from the first round.

    Both are written together and a crash may keep only one of them. A readable round is enough.
    """
    data = disk.read(name, 0, FIRST_BYTES)
    refuse_newer(name, header_format(data))
    header = parse_header(data)
    if header is not None and header.volume != layout.volume:
        raise WrongVolumeError(f"{name}: the file belongs to another volume's log; move it back to that volume")
    claim, end = first_frame(data)
    if claim > (header.segment if header is not None else 0):
        frame = layout.frame_at(memoryview(disk.read(name, 0, end)), HEADER_BYTES, segment=claim)
        header = header if frame is None else Header(layout.volume, claim, 0, frame.round, 0)
    return _File(name, header, claim)


def _in_order(files: list[_Held]) -> list[_Held]:
    """Order segments as they were written; drop those that were abandoned for a later one before their first round."""
    ordered: list[_Held] = []
    for file in sorted(files, key=lambda file: file.header.segment):
        while ordered and ordered[-1].header.first_round >= file.header.first_round:
            ordered.pop()
        ordered.append(file)
    return ordered


def _needed(disk: Disk, layout: Layout, files: list[_Held]) -> list[_Held]:
    """Drop the segments below the floor, whose files may be missing or partly overwritten."""
    newest = files[-1]
    stop = _walk(layout, newest, _read(disk, newest), lambda _frame, _offset: None)
    while len(files) > 1 and files[1].header.first_round <= stop.floor:
        files = files[1:]
    if files[0].header.first_round > stop.floor:
        rounds = f"rounds {stop.floor} to {files[0].header.first_round - 1}"
        raise CorruptLogError(f"the previous file with {rounds} is missing; {_REMEDY}", file=files[0].name, offset=0)
    return files


def _read(disk: Disk, file: _Held) -> bytes:
    size = disk.size(file.name)
    if size < max(file.header.size, HEADER_BYTES):
        truncated = f"the file was truncated, it had {file.header.size} bytes; {_REMEDY}"
        raise CorruptLogError(truncated, file=file.name, offset=size)
    return disk.read(file.name, 0, size)


def _walk(layout: Layout, file: _Held, data: bytes, visit: Callable[[Frame, int], None]) -> _Stop:
    """Visit every readable round of a segment in order."""
    view, header = memoryview(data), file.header
    offset, round_, floor = HEADER_BYTES, header.first_round, header.floor
    while True:
        frame = layout.frame_at(view, offset, segment=header.segment)
        if frame is None or frame.round != round_:
            return _Stop(offset, round_, floor)
        visit(frame, offset)
        offset, round_, floor = frame.end, round_ + 1, frame.floor


def _read_segment(layout: Layout, file: _Held, data: bytes, replay: Replay) -> tuple[Segment, _Stop]:
    header = file.header
    segment = Segment(number=header.segment, name=file.name, size=len(data), first_round=header.first_round)

    def visit(frame: Frame, offset: int) -> None:
        records = frame.records()
        if records is None:
            raise CorruptLogError(
                f"round {frame.round} holds unknown records; {_REMEDY}", file=file.name, offset=offset
            )
        try:
            replay.apply(records, frame.round)
        except ContradictionError as error:
            raise CorruptLogError(f"round {frame.round}: {error}", file=file.name, offset=offset) from None
        segment.add_round(frame.end)

    return segment, _walk(layout, file, data, visit)


def _check_joint(file: _Held, stop: _Stop, after: _Held) -> None:
    if stop.round != after.header.first_round:
        raise _damaged(file.name, stop.offset, stop.round, f"{after.name} begins with round {after.header.first_round}")


def _check_tail(layout: Layout, file: _Held, stop: _Stop, data: bytes) -> None:
    """Accept a torn round and refuse a damaged one: only a durable round has a successor."""
    for frame in layout.frames_from(data, stop.offset, segment=file.header.segment):
        if frame.round > stop.round:
            raise _damaged(file.name, stop.offset, stop.round, f"round {frame.round} follows it")


def _check_stray(disk: Disk, layout: Layout, file: _File, next_round: int) -> None:
    """Refuse a file with a damaged beginning that holds rounds after the last one that was read."""
    if file.header is not None:
        return
    for frame in layout.frames_from(disk.read(file.name, 0, disk.size(file.name)), HEADER_BYTES):
        if frame.round > next_round:
            raise _damaged(file.name, 0, next_round, f"round {frame.round} follows it")


def _damaged(name: str, offset: int, round_: int, proof: str) -> CorruptLogError:
    return CorruptLogError(
        f"round {round_} is unreadable but was durable, because {proof}; {_REMEDY}",
        file=name,
        offset=offset,
    )


def _settle(disk: Disk, layout: Layout, segment: Segment, data: bytes) -> None:
    """Make the newest round durable even if its fsync failed, and a torn round after it unreadable for good.

    Otherwise later writes could complete the torn round.
    """
    _erase(disk, segment.name, segment.end, len(data))
    frame = layout.frame_at(memoryview(data), HEADER_BYTES, segment=segment.number)
    if frame is not None:
        begin, end = segment.place(segment.next_round - 1)
        disk.write(segment.name, begin, memoryview(data)[begin:end])
    disk.sync(segment.name)
    if frame is not None and segment.end == frame.end:
        header = layout.header(
            segment=segment.number, size=segment.size, first_round=segment.first_round, floor=frame.floor
        )
        disk.write(segment.name, 0, header)
        disk.sync(segment.name)


def _erase(disk: Disk, name: str, offset: int, size: int) -> None:
    disk.write(name, offset, bytes(min(FRAME_BYTES, size - offset)))

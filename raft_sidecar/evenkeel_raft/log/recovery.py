"""From files to groups: what is durable, what a crash tore, and what is damaged.

A round is written only when the one before is durable. So at most one round, the newest, is ever torn, and a readable
round proves that all before it were whole once. Reading stops at the first round that is not readable; if any later
round is, or a later segment says that it began later, then something durable was damaged, and the log is refused.

The newest readable round itself is proved by nothing: it may be in the page cache alone, also after an fsync that
failed. It is written once more, and synced, before anybody acts on it.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from evenkeel_raft.errors import CorruptLogError, WrongVolumeError
from evenkeel_raft.log.disk import Disk
from evenkeel_raft.log.frames import FIRST_BYTES, HEADER_BYTES, Frame, Header, Layout, header_format, parse_header
from evenkeel_raft.log.replay import ContradictionError, Replay
from evenkeel_raft.log.segments import Segment, is_slot
from evenkeel_raft.log.volume import refuse_newer

__all__ = ["Scan", "scan"]


class Scan(Struct, frozen=True):
    """What the files hold: the records of the segments in use, and files of which nothing is needed."""

    replay: Replay
    segments: list[Segment]
    spares: list[str]


class _File(Struct, frozen=True):
    """A file that holds, or held, a segment."""

    name: str
    header: Header


class _Stop(Struct, frozen=True):
    """Where reading a segment ended, and what should have been there."""

    offset: int
    round: int
    floor: int


def scan(disk: Disk, layout: Layout) -> Scan:
    """Read a log as it is, and make sure that what was read is durable."""
    names = sorted(name for name in disk.names() if is_slot(name))
    files = _in_order([file for file in (_file(disk, layout, name) for name in names) if file is not None])
    if not files:
        return Scan(Replay(), [], names)
    needed = _needed(disk, layout, files)
    replay, segments = Replay(), []
    for file, after in zip(needed, [*needed[1:], None], strict=True):
        data = disk.read(file.name, 0, disk.size(file.name))
        segment, stop = _read_segment(layout, file, data, replay)
        if after is not None:
            _check_joint(file, stop, after)
        else:
            _check_tail(layout, file, stop, data)
            _write_again(disk, layout, segment, data)
        segments.append(segment)
    in_use = {file.name for file in needed}
    return Scan(replay, segments, [name for name in names if name not in in_use])


def _file(disk: Disk, layout: Layout, name: str) -> _File | None:
    data = disk.read(name, 0, FIRST_BYTES)
    refuse_newer(name, header_format(data))
    header = parse_header(data) or _header_from_round(disk, layout, name, data)
    if header is None:
        return None
    if header.volume != layout.volume:
        raise WrongVolumeError(f"{name}: the file belongs to the log of another volume: put it back where it came from")
    return _File(name, header)


def _header_from_round(disk: Disk, layout: Layout, name: str, data: bytes) -> Header | None:
    """Do without a header: it is written together with the first round, so a whole round counts, with it or without."""
    segment, end = layout.first_frame(data)
    frame = layout.frame_at(memoryview(disk.read(name, 0, end)), HEADER_BYTES, segment=segment) if segment else None
    return None if frame is None else Header(layout.volume, segment, frame.round, 0)


def _in_order(files: list[_File]) -> list[_File]:
    """Order segments as they were written; one that a later segment began in place of was given up before its use."""
    ordered: list[_File] = []
    for file in sorted(files, key=lambda file: file.header.segment):
        while ordered and ordered[-1].header.first_round >= file.header.first_round:
            ordered.pop()
        ordered.append(file)
    return ordered


def _needed(disk: Disk, layout: Layout, files: list[_File]) -> list[_File]:
    """Drop the segments below the floor: files of theirs may be missing or partly overwritten."""
    newest = files[-1]
    stop = _walk(layout, newest, disk.read(newest.name, 0, disk.size(newest.name)), lambda _frame, _offset: None)
    while len(files) > 1 and files[1].header.first_round <= stop.floor:
        files = files[1:]
    if files[0].header.first_round > stop.floor:
        missing = f"rounds {stop.floor} to {files[0].header.first_round - 1}"
        raise CorruptLogError(f"the file before it is missing: it held {missing}", file=files[0].name, offset=0)
    return files


def _walk(layout: Layout, file: _File, data: bytes, visit: Callable[[Frame, int], None]) -> _Stop:
    """Visit every readable round of a segment in order."""
    view, header = memoryview(data), file.header
    offset, round_, floor = HEADER_BYTES, header.first_round, header.floor
    while True:
        frame = layout.frame_at(view, offset, segment=header.segment)
        if frame is None or frame.round != round_:
            return _Stop(offset, round_, floor)
        visit(frame, offset)
        offset, round_, floor = frame.end, round_ + 1, frame.floor


def _read_segment(layout: Layout, file: _File, data: bytes, replay: Replay) -> tuple[Segment, _Stop]:
    header = file.header
    segment = Segment(number=header.segment, name=file.name, size=len(data), first_round=header.first_round)

    def visit(frame: Frame, offset: int) -> None:
        records = frame.records()
        if records is None:
            raise CorruptLogError(f"round {frame.round} holds unknown records", file=file.name, offset=offset)
        try:
            replay.apply(records, frame.round)
        except ContradictionError as error:
            raise CorruptLogError(f"round {frame.round}: {error}", file=file.name, offset=offset) from None
        segment.add_round(frame.end)

    return segment, _walk(layout, file, data, visit)


def _check_joint(file: _File, stop: _Stop, after: _File) -> None:
    if stop.round != after.header.first_round:
        raise _damaged(file, stop, f"{after.name} begins with round {after.header.first_round}")


def _check_tail(layout: Layout, file: _File, stop: _Stop, data: bytes) -> None:
    """Let a torn round pass, and refuse a damaged one: only a round that was durable has a successor."""
    for frame in layout.frames_after(data, stop.offset, segment=file.header.segment):
        if frame.round > stop.round:
            raise _damaged(file, stop, f"round {frame.round} follows it")


def _damaged(file: _File, stop: _Stop, proof: str) -> CorruptLogError:
    return CorruptLogError(
        f"round {stop.round} was durable, for {proof}, and cannot be read: replace this store's volume, so that its "
        f"replicas are filled anew by their leaders",
        file=file.name,
        offset=stop.offset,
    )


def _write_again(disk: Disk, layout: Layout, segment: Segment, data: bytes) -> None:
    """Make the newest round durable, whatever became of its first fsync."""
    if segment.blank:
        return
    begin, end = segment.place(segment.next_round - 1)
    disk.write(segment.name, begin, memoryview(data)[begin:end])
    disk.sync(segment.name)
    frame = layout.frame_at(memoryview(data), HEADER_BYTES, segment=segment.number)
    if begin == HEADER_BYTES and frame is not None:
        header = layout.header(segment=segment.number, first_round=segment.first_round, floor=frame.floor)
        disk.write(segment.name, 0, header)
        disk.sync(segment.name)

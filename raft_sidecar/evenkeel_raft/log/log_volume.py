"""Whose log it is: a file beside the segments, written before any of them.

What changes with time, the metastore's cluster and revision, is a record of the log instead: it becomes durable with a
round that happens anyway.

The file has format 2 once the volume has seen a cluster version above the first. The first release knows no cluster
versions, but it refuses a volume of a format that it does not know, before it changes anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import msgspec
from msgspec import Struct

from evenkeel.runtime.directories import replace_file
from evenkeel_raft.errors import CorruptLogError, NewerFormatError, WrongVolumeError
from evenkeel_raft.log.log_disk import Disk
from evenkeel_raft.log.log_frames import FORMAT

__all__ = ["VOLUME_FILE", "close_to_first_release", "open_volume", "refuse_newer"]

VOLUME_FILE: Final = "volume.json"
_CLOSED_TO_FIRST_RELEASE: Final = 2
_NEW: Final = "volume.json.new"


class _Identity(Struct):
    format: int
    volume: str


def open_volume(disk: Disk, expected: str | None = None) -> UUID:
    """Return the volume's id, making the log of a new volume where there is none.

    `expected` is what the volume is called elsewhere; a log of another volume is refused.
    """
    names = disk.names()
    if VOLUME_FILE not in names:
        return _create(disk, names, UUID(expected) if expected else uuid4())
    volume = _read(disk)
    if expected and volume != UUID(expected):
        raise WrongVolumeError(
            f"{VOLUME_FILE}: the log belongs to volume {volume}, and this store to volume {UUID(expected)}: mount the "
            f"disk that belongs here, or let the store start as a new volume with an empty log directory"
        )
    return volume


def close_to_first_release(log: Path, volume: str) -> None:
    """Have the first release refuse this log's directory from now on, durably."""
    replace_file(log / VOLUME_FILE, msgspec.json.encode(_Identity(_CLOSED_TO_FIRST_RELEASE, volume)))


def refuse_newer(file: str, format_: int, *, newest: int = FORMAT) -> None:
    """Stop at a format that only later versions know."""
    if format_ > newest:
        raise NewerFormatError(
            f"{file}: the log has format {format_}, and this version reads up to {newest}: run the newer version"
        )


def _read(disk: Disk) -> UUID:
    data = disk.read(VOLUME_FILE, 0, disk.size(VOLUME_FILE))
    try:
        # The format first: what else the file says may have changed with it.
        found = msgspec.json.decode(data, type=_Format).format
        refuse_newer(VOLUME_FILE, found, newest=_CLOSED_TO_FIRST_RELEASE)
        return UUID(msgspec.json.decode(data, type=_Identity).volume)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptLogError(f"cannot read whose log it is: {error}", file=VOLUME_FILE, offset=0) from None


class _Format(Struct):
    format: int


def _create(disk: Disk, names: list[str], volume: UUID) -> UUID:
    others = [name for name in names if name != _NEW and not name.startswith(".") and name != "lost+found"]
    if others:
        raise CorruptLogError(
            f"there are files, such as {min(others)}, but nothing says whose log they are", file=VOLUME_FILE, offset=0
        )
    if _NEW in names:
        disk.delete(_NEW)
    data = msgspec.json.encode(_Identity(FORMAT, str(volume)))
    disk.allocate(_NEW, len(data))
    disk.write(_NEW, 0, data)
    disk.sync(_NEW)
    disk.rename(_NEW, VOLUME_FILE)
    disk.sync_directory()
    return volume

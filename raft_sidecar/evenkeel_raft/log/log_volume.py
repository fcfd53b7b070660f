"""The file that identifies the log's volume, written before any segment.

The metastore's cluster and revision change over time, so they are a record of the log instead, which becomes durable
with the next round.

The file has format 2 once the volume has seen a cluster version above the first. The first release has no cluster
versions, but it refuses a volume with an unknown format before it changes anything.
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
    """Return the volume's id; creates the file if the directory is empty.

    `expected` is the id that the volume must have, or gets if it is new.
    """
    names = disk.names()
    if VOLUME_FILE not in names:
        return _create(disk, names, UUID(expected) if expected else uuid4())
    volume = _read(disk)
    if expected and volume != UUID(expected):
        raise WrongVolumeError(
            f"{VOLUME_FILE}: the log belongs to volume {volume}, but this store to volume {UUID(expected)}; mount the "
            f"right disk, or start the store as a new volume with an empty log directory"
        )
    return volume


def close_to_first_release(log: Path, volume: str) -> None:
    """Durably make the first release refuse this log's directory."""
    replace_file(log / VOLUME_FILE, msgspec.json.encode(_Identity(_CLOSED_TO_FIRST_RELEASE, volume)))


def refuse_newer(file: str, format_: int, *, newest: int = FORMAT) -> None:
    """Raise `NewerFormatError` for a format that only newer versions can read."""
    if format_ > newest:
        raise NewerFormatError(
            f"{file}: the log has format {format_}, but this version reads up to {newest}; run the newer version"
        )


def _read(disk: Disk) -> UUID:
    data = disk.read(VOLUME_FILE, 0, disk.size(VOLUME_FILE))
    try:
        # The format is decoded first, because a newer format may change the other fields.
        found = msgspec.json.decode(data, type=_Format).format
        refuse_newer(VOLUME_FILE, found, newest=_CLOSED_TO_FIRST_RELEASE)
        return UUID(msgspec.json.decode(data, type=_Identity).volume)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptLogError(f"cannot read the volume's identity: {error}", file=VOLUME_FILE, offset=0) from None


class _Format(Struct):
    format: int


def _create(disk: Disk, names: list[str], volume: UUID) -> UUID:
    others = [name for name in names if name != _NEW and not name.startswith(".") and name != "lost+found"]
    if others:
        raise CorruptLogError(
            f"the file is missing, but the directory holds others, such as {min(others)}; restore it or empty the "
            f"directory",
            file=VOLUME_FILE,
            offset=0,
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

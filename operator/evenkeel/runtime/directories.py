"""The directory that a state machine works in: one process at a time, one volume for ever, room left on the disk."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from evenkeel.errors import InvalidInputError

__all__ = ["DataDirectory", "make_directory", "replace_file", "sync_directory"]


class DataDirectory:
    """Made if it is not there, and locked."""

    def __init__(self, path: Path, *, reserve: int = 0) -> None:
        self._path = path
        self._reserve = reserve
        self._lock = _lock(path)
        self._volume_file = path / "volume"
        self.volume = self._volume_file.read_text() if self._volume_file.exists() else ""

    def release(self) -> None:
        """Let others work here."""
        os.close(self._lock)

    def adopt_volume(self, volume: str) -> None:
        """Keep a volume as our own, durably, where we have none."""
        if self.volume:
            return
        replace_file(self._volume_file, volume.encode())
        self.volume = volume

    def free(self) -> int:
        """Return how many bytes are left on the disk."""
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize

    def full(self) -> str:
        """Why nothing more may be written; empty while there is room."""
        free = self.free() if self._reserve else 0
        if free >= self._reserve:
            return ""
        return (
            f"disk full: {free >> 20} MiB are left where {self._path} is, and {self._reserve >> 20} MiB are kept free: "
            "give the volume more room"
        )


def _lock(directory: Path) -> int:
    """See that no other process works here."""
    try:
        make_directory(directory)
        held = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InvalidInputError(f"data directory {directory}: {error.strerror}; choose another with --data") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise InvalidInputError(f"another process uses {directory}: stop it, or choose another with --data") from None
    return held


def make_directory(directory: Path) -> None:
    """Make a directory, and those above it that are not there, durably: nothing in it is safe while its name is not."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_directory(path.parent)


def replace_file(file: Path, data: bytes) -> None:
    """Write a file anew, durably: after a crash it is the old one or the new one."""
    fresh = file.with_name(f"{file.name}.new")
    with fresh.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    fresh.rename(file)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

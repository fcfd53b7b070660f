"""Durable file operations, and a data directory that one process locks and one volume owns."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from evenkeel.errors import InvalidInputError

__all__ = ["DataDirectory", "make_directory", "replace_file", "sync_directory"]


class DataDirectory:
    """The data directory of a state machine; it is created if missing, and locked."""

    def __init__(self, path: Path, *, reserve: int = 0) -> None:
        self._path = path
        self._reserve = reserve
        self._lock = _lock(path)
        self._volume_file = path / "volume"
        self.volume = self._volume_file.read_text() if self._volume_file.exists() else ""

    def release(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def adopt_volume(self, volume: str) -> None:
        """Record the id of the volume durably, unless one is recorded."""
        if self.volume:
            return
        replace_file(self._volume_file, volume.encode())
        self.volume = volume

    def free(self) -> int:
        """Return the free bytes of the disk."""
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize

    def full(self) -> str:
        """Return why nothing more may be written; empty while the reserve is free."""
        free = self.free() if self._reserve else 0
        if free >= self._reserve:
            return ""
        return (
            f"disk full: {free >> 20} MiB are free on the disk of {self._path}, which is less than the reserve of "
            f"{self._reserve >> 20} MiB: enlarge the volume"
        )


def _lock(directory: Path) -> int:
    """Lock the directory against other processes; return the file descriptor of the lock."""
    try:
        make_directory(directory)
        held = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InvalidInputError(f"data directory {directory}: {error.strerror}; choose another with --data") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise InvalidInputError(
            f"data directory {directory} is locked by another process: stop it, or choose another with --data"
        ) from None
    return held


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents, and make their names durable."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_directory(path.parent)


def replace_file(file: Path, data: bytes) -> None:
    """Replace a file durably and atomically: after a crash it has the old or the new content."""
    fresh = file.with_name(f"{file.name}.new")
    with fresh.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    fresh.rename(file)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

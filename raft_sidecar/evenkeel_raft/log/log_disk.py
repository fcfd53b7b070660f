"""File system operations that the log needs, as a protocol and on a real directory.

Names are those of files in one directory. Written data is durable only after `sync`, renames and deletions only after
`sync_directory`. `allocate` is durable when it returns, so that a full disk is detected there and not in the middle of
a round. Every method may raise `OSError`.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from evenkeel.errors import InvalidInputError
from evenkeel.runtime.directories import make_directory
from evenkeel_raft.errors import LogInUseError

__all__ = ["Bytes", "Disk", "FileDisk"]

Bytes = bytes | bytearray | memoryview


class Disk(Protocol):
    """A directory of files."""

    def names(self) -> list[str]:
        """List the files there are."""

    def size(self, name: str) -> int:
        """Return a file's length."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return the bytes there; fewer at the end of the file."""

    def write(self, name: str, offset: int, data: Bytes) -> None:
        """Write all of it into a file that exists."""

    def sync(self, name: str) -> None:
        """Make durable what was written to a file."""

    def allocate(self, name: str, size: int) -> None:
        """Make a new file of zeros, durably; leaves none behind if there is no room."""

    def rename(self, name: str, to: str) -> None:
        """Put a file in another's place."""

    def delete(self, name: str) -> None:
        """Remove a file."""

    def sync_directory(self) -> None:
        """Make renames and deletions durable."""

    def close(self) -> None:
        """Let go of the directory."""


class FileDisk:
    """A directory that this process alone may write to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            make_directory(directory)
            self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise InvalidInputError(
                f"cannot use {directory} for the log: {error.strerror}; choose another directory"
            ) from error
        self._files: dict[str, int] = {}
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._directory)
            raise LogInUseError(f"{directory}: another process has this log open; stop it first") from None

    def names(self) -> list[str]:
        """List the files there are."""
        return os.listdir(self.directory)

    def size(self, name: str) -> int:
        """Return a file's length."""
        return os.fstat(self._open(name)).st_size

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return the bytes there; fewer at the end of the file."""
        file, parts = self._open(name), []
        try:
            while size and (part := os.pread(file, size, offset)):
                parts.append(part)
                offset, size = offset + len(part), size - len(part)
        except OSError as error:
            raise _named(error, name) from None
        return b"".join(parts)

    def write(self, name: str, offset: int, data: Bytes) -> None:
        """Write all of it into a file that exists."""
        file, view = self._open(name), memoryview(data)
        try:
            while view:
                written = os.pwrite(file, view, offset)
                offset, view = offset + written, view[written:]
        except OSError as error:
            raise _named(error, name) from None

    def sync(self, name: str) -> None:
        """Make durable what was written to a file."""
        file = self._open(name)
        try:
            os.fdatasync(file)
        except OSError as error:
            raise _named(error, name) from None

    def allocate(self, name: str, size: int) -> None:
        """Make a new file of zeros, durably; leaves none behind if there is no room."""
        path = self.directory / name
        self._files[name] = file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
            os.fsync(file)
            self.sync_directory()
        except OSError:
            with suppress(OSError):
                self.delete(name)
            raise

    def rename(self, name: str, to: str) -> None:
        """Put a file in another's place."""
        self._close(name)
        self._close(to)
        os.replace(self.directory / name, self.directory / to)

    def delete(self, name: str) -> None:
        """Remove a file."""
        self._close(name)
        os.unlink(self.directory / name)

    def sync_directory(self) -> None:
        """Make renames and deletions durable."""
        os.fsync(self._directory)

    def close(self) -> None:
        """Let go of the directory."""
        for name in list(self._files):
            self._close(name)
        os.close(self._directory)

    def _open(self, name: str) -> int:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = os.open(self.directory / name, os.O_RDWR | os.O_CLOEXEC)
        return file

    def _close(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None:
            os.close(file)


def _named(error: OSError, name: str) -> OSError:
    """Add the file's name to an error; system calls on descriptors do not know it."""
    error.filename = name
    return error

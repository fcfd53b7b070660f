"""A snapshot that has arrived in part.

A snapshot is written into `<key>.partial`; the directory is renamed to `<key>` when all files are complete and durable.
Each chunk is read back from disk before it counts as verified. The key names the replica, the snapshot and its exact
files, so a new process can continue what the previous one received: it verifies the chunks again and continues at the
first one that does not match.

All functions block; call them on a thread.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from evenkeel.runtime.directories import sync_directory
from evenkeel_raft.core.raft_messages import InstallSnapshot
from evenkeel_raft.net.files.snapshot_manifest import Manifest

__all__ = ["PARTIAL", "Key", "Partial", "key_of", "parse_key", "remove"]

PARTIAL: Final = ".partial"
_SYNC_BYTES: Final = 16 << 20
_KEY: Final = re.compile(r"([0-9]+)-([0-9]+)-[0-9]+-([0-9]+)-[0-9]+-[0-9a-z]+")


def key_of(message: InstallSnapshot, manifest: Manifest) -> str:
    """Return the directory name for a replica's snapshot."""
    at = f"{message.meta.index}-{message.meta.term}"
    return f"{message.group}-{message.receiver}-{message.generation}-{at}-{manifest.digest()}"


class Key(NamedTuple):
    """The replica and the index that a directory name identifies."""

    group: int
    replica: int
    at: int


def parse_key(name: str) -> Key | None:
    """Parse the name of a complete or partial directory; None if it is not a snapshot's."""
    found = _KEY.fullmatch(name.removesuffix(PARTIAL))
    return None if found is None else Key(*map(int, found.groups()))


class Partial:
    """One snapshot that is being received."""

    def __init__(self, root: Path, key: str, manifest: Manifest) -> None:
        self.final = root / key
        self._root = root
        self._directory = root / (key + PARTIAL)
        self._manifest = manifest
        self._unsynced: dict[int, int] = {}
        self._back = memoryview(bytearray(manifest.chunk_bytes))
        self.verified = [0] * len(manifest.files)
        """Verified bytes of each file."""
        self.spoiled = False
        """Whether a sync failed. The kernel may have dropped the data, and reports that only once."""

    @property
    def whole(self) -> bool:
        """Whether all files are verified to their end."""
        return self.verified == [file.size for file in self._manifest.files]

    def complete(self) -> bool:
        """Whether the snapshot was stored earlier."""
        return self.final.is_dir()

    def prepare(self) -> None:
        """Verify what is on disk and create missing files."""
        for number, file in enumerate(self._manifest.files):
            path = self._directory / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab"):
                pass
            self.verified[number] = self._verified(number)
            os.truncate(path, self.verified[number])

    def expects(self, number: int, offset: int, length: int) -> bool:
        """Whether a chunk of this length is the next one of a file."""
        known = 0 <= number < len(self.verified)
        return known and offset == self.verified[number] and length == self._manifest.length_at(number, offset)

    def write(self, number: int, offset: int, data: bytes | memoryview) -> bool:
        """Write a chunk and read it back; return False if it does not match its checksum."""
        # Open the file each time: a snapshot may have more files than a process may open.
        with (self._directory / self._manifest.files[number].name).open("r+b", buffering=0) as file:
            _write_all(file.fileno(), data, offset)
            size = os.preadv(file.fileno(), [self._back], offset)
            if not self._manifest.verifies(number, offset, self._back[: min(size, len(data))]):
                file.truncate(offset)
                return False
        self.verified[number] = offset + len(data)
        self._unsynced[number] = self._unsynced.get(number, 0) + len(data)
        return True

    def due(self) -> dict[int, int]:
        """Return the files to sync once enough is unsynced: small portions do not block other writers' syncs."""
        if sum(self._unsynced.values()) < _SYNC_BYTES:
            return {}
        due, self._unsynced = self._unsynced, {}
        return due

    def sync(self, numbers: Iterable[int]) -> None:
        """Sync files."""
        try:
            for number in numbers:
                with (self._directory / self._manifest.files[number].name).open("rb") as file:
                    os.fsync(file.fileno())
        except OSError:
            self.spoiled = True
            raise

    def finish(self) -> None:
        """Sync everything and give the directory its final name; all chunks must be verified."""
        self.sync(range(len(self.verified)))
        for folder in {path.parent for path in self._directory.rglob("*")} | {self._directory}:
            sync_directory(folder)
        self._directory.rename(self.final)
        sync_directory(self._root)

    def discard(self) -> None:
        """Delete what arrived."""
        remove(self._directory)

    def _verified(self, number: int) -> int:
        """Return the length of the file's verified prefix."""
        file, verified = self._manifest.files[number], 0
        with (self._directory / file.name).open("rb", buffering=0) as opened:
            while verified < file.size:
                data = opened.read(self._manifest.length_at(number, verified))
                if not self._manifest.verifies(number, verified, data):
                    break
                verified += len(data)
        return verified


def _write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)


def remove(directory: Path) -> None:
    """Delete a directory if it exists."""
    shutil.rmtree(directory, ignore_errors=True)

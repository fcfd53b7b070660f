"""What has arrived of a snapshot so far.

A snapshot is written into `<key>.partial`, and that directory becomes `<key>` when all files are complete and durable.
What is verified is not what arrived but what can be read back after it was written. The key names the replica, the
snapshot and its exact files, so what a dead process left behind can be gone on with: its chunks are verified again,
and the first that does not fit is where to go on.

Everything here blocks: it runs on a thread.
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
    """Return the name of the directory for one replica's snapshot."""
    at = f"{message.meta.index}-{message.meta.term}"
    return f"{message.group}-{message.receiver}-{message.generation}-{at}-{manifest.digest()}"


class Key(NamedTuple):
    """What the name of a directory says: whose snapshot it holds, and at which index."""

    group: int
    replica: int
    at: int


def parse_key(name: str) -> Key | None:
    """Read the name of a directory, whole or in part; None where it is none of ours."""
    found = _KEY.fullmatch(name.removesuffix(PARTIAL))
    return None if found is None else Key(*map(int, found.groups()))


class Partial:
    """One snapshot on its way in."""

    def __init__(self, root: Path, key: str, manifest: Manifest) -> None:
        self.final = root / key
        self._root = root
        self._directory = root / (key + PARTIAL)
        self._manifest = manifest
        self._unsynced: dict[int, int] = {}
        self._back = memoryview(bytearray(manifest.chunk_bytes))
        self.verified = [0] * len(manifest.files)
        """Bytes of each file that arrived whole."""
        self.spoiled = False
        """Whether a sync failed: the kernel may have dropped what it could not write, and says so only once."""

    @property
    def whole(self) -> bool:
        """Whether every file arrived to its end."""
        return self.verified == [file.size for file in self._manifest.files]

    def complete(self) -> bool:
        """Whether the snapshot was stored before."""
        return self.final.is_dir()

    def prepare(self) -> None:
        """Find what is there already; files that are not get made."""
        for number, file in enumerate(self._manifest.files):
            path = self._directory / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab"):
                pass
            self.verified[number] = self._verified(number)
            os.truncate(path, self.verified[number])

    def expects(self, number: int, offset: int, length: int) -> bool:
        """Whether a chunk of this length is what comes next of a file."""
        known = 0 <= number < len(self.verified)
        return known and offset == self.verified[number] and length == self._manifest.length_at(number, offset)

    def write(self, number: int, offset: int, data: bytes | memoryview) -> bool:
        """Add a chunk to a file, and read it back; False if it is not the chunk it should be."""
        # Opened each time: a snapshot may have more files than a process may have open.
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
        """Return the files to sync by now, if it is time: in small portions, or everybody else's syncs would wait."""
        if sum(self._unsynced.values()) < _SYNC_BYTES:
            return {}
        due, self._unsynced = self._unsynced, {}
        return due

    def sync(self, numbers: Iterable[int]) -> None:
        """Make files durable."""
        try:
            for number in numbers:
                with (self._directory / self._manifest.files[number].name).open("rb") as file:
                    os.fsync(file.fileno())
        except OSError:
            self.spoiled = True
            raise

    def finish(self) -> None:
        """Make everything durable and give the directory its final name. Every chunk has been verified by now."""
        self.sync(range(len(self.verified)))
        for folder in {path.parent for path in self._directory.rglob("*")} | {self._directory}:
            sync_directory(folder)
        self._directory.rename(self.final)
        sync_directory(self._root)

    def discard(self) -> None:
        """Forget what arrived."""
        remove(self._directory)

    def _verified(self, number: int) -> int:
        """Read a file back as far as its chunks are what they should be."""
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
    """Delete a directory, if it is there."""
    shutil.rmtree(directory, ignore_errors=True)

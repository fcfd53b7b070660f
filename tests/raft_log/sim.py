"""A simulated disk that loses unsynced sectors in any order, and fails on demand."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

from evenkeel_raft.log.log_disk import Bytes

SECTOR = 512


class CrashError(BaseException):
    """The power failed, so nothing handles this exception."""


class SimFile:
    """A file's readable data, its durable data, and the possible contents of each unsynced sector after a crash."""

    def __init__(self, size: int) -> None:
        self.cache = bytearray(size)
        self.durable = bytearray(size)
        self.dirty: dict[int, list[bytes]] = {}

    def write(self, offset: int, data: Bytes) -> None:
        assert offset + len(data) <= len(self.cache), "the log writes past what it allocated"
        self.cache[offset : offset + len(data)] = data
        for sector in range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1):
            self.dirty.setdefault(sector, []).append(bytes(self.cache[sector * SECTOR : (sector + 1) * SECTOR]))

    def clone(self) -> SimFile:
        twin = SimFile(0)
        twin.cache, twin.durable = bytearray(self.cache), bytearray(self.durable)
        twin.dirty = {sector: list(versions) for sector, versions in self.dirty.items()}
        return twin

    def sync(self) -> None:
        for sector, versions in self.dirty.items():
            self._keep(sector, versions[-1])
        self.dirty.clear()

    def fail_sync(self) -> None:
        """Behave like Linux after a failed fsync: the pages stay, count as clean, and never reach the disk."""
        self.dirty.clear()

    def crash(self, rng: Random) -> None:
        for sector, versions in self.dirty.items():
            at = sector * SECTOR
            old = bytes(self.durable[at : at + SECTOR])
            kept = rng.choice([old, *versions])
            tear = rng.choice([0, SECTOR, rng.randrange(SECTOR)])
            self._keep(sector, kept[:tear] + versions[-1][tear:] if rng.random() < 0.3 else kept)
        self.dirty.clear()
        self.cache = bytearray(self.durable)

    def _keep(self, sector: int, data: bytes) -> None:
        self.durable[sector * SECTOR : sector * SECTOR + len(data)] = data


class SimDisk:
    """`before` is called before every change, and may raise `CrashError` or a disk error."""

    def __init__(self, *, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.files: dict[str, SimFile] = {}
        self.before: Callable[[str, str], None] = lambda _operation, _name: None
        self.operations = 0
        self.written = 0
        self._deleted: dict[str, SimFile] = {}
        self._renamed: dict[str, str] = {}

    # The log's side

    def names(self) -> list[str]:
        return list(self.files)

    def size(self, name: str) -> int:
        return len(self.files[name].cache)

    def read(self, name: str, offset: int, size: int) -> bytes:
        return bytes(self.files[name].cache[offset : offset + size])

    def write(self, name: str, offset: int, data: Bytes) -> None:
        try:
            self._change("write", name)
        except CrashError:
            self.files[name].write(offset, data)
            raise
        except OSError:
            if len(data) // 2:
                self.files[name].write(offset, data[: len(data) // 2])
            raise
        self.files[name].write(offset, data)
        self.written += len(data)

    def sync(self, name: str) -> None:
        try:
            self._change("sync", name)
        except OSError:
            self.files[name].fail_sync()
            raise
        self.files[name].sync()

    def allocate(self, name: str, size: int) -> None:
        assert name not in self.files
        try:
            self._change("allocate", name)
        except CrashError:
            self.files[name] = SimFile(size // 3)
            raise
        if self.used() + size > self.capacity:
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")
        self.files[name] = SimFile(size)
        self._settle_directory()

    def rename(self, name: str, to: str) -> None:
        self._change("rename", name)
        assert to not in self.files
        self.files[to] = self.files.pop(name)
        self._renamed[to] = name

    def delete(self, name: str) -> None:
        self._change("delete", name)
        self._deleted[name] = self.files.pop(name)

    def sync_directory(self) -> None:
        self._change("sync_directory", "")
        self._settle_directory()

    def close(self) -> None:
        pass

    # The test's side

    def used(self) -> int:
        return sum(len(file.cache) for file in self.files.values())

    def clone(self) -> SimDisk:
        """Return a disk in the same state that does not fail."""
        twin = SimDisk()
        twin.files = {name: file.clone() for name, file in self.files.items()}
        twin._deleted = {name: file.clone() for name, file in self._deleted.items()}
        twin._renamed = dict(self._renamed)
        return twin

    def crash(self, rng: Random) -> None:
        """Fail the power: any part of unsynced writes, deletions and renames survives."""
        for name, file in self._deleted.items():
            if rng.random() < 0.5:
                self.files[name] = file
        for name, before in self._renamed.items():
            if rng.random() < 0.5:
                self.files[before] = self.files.pop(name)
        self._settle_directory()
        for file in self.files.values():
            file.crash(rng)
        self.before = lambda _operation, _name: None

    def flip(self, name: str, offset: int, bit: int) -> None:
        """Damage a byte permanently."""
        for data in (self.files[name].cache, self.files[name].durable):
            data[offset] ^= 1 << bit

    def _settle_directory(self) -> None:
        self._deleted.clear()
        self._renamed.clear()

    def _change(self, operation: str, name: str) -> None:
        self.operations += 1
        self.before(operation, name)


def at_operation(count: int, error: BaseException) -> Callable[[str, str], None]:
    """Return a `before` that raises at the n-th change and every later one."""
    left = count

    def before(_operation: str, _name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise error

    return before

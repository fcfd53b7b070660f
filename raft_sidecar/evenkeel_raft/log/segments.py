"""Segment files: those in use, and spare ones.

A file is a slot that holds one segment after another. Its header, not its name, identifies the segment, and is written
together with the first round. So starting a segment needs no extra fsync. Files are fully allocated before their first
use, when a full disk is still harmless. They are zeroed in the background, because a file system journals the first
write to a block that is only allocated.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from evenkeel_raft.errors import DiskFullError
from evenkeel_raft.log.log_disk import Bytes, Disk
from evenkeel_raft.log.log_frames import HEADER_BYTES

__all__ = ["Segment", "Slots", "is_slot", "write_or_full"]

_SUFFIX: Final = ".log"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Spares to keep beyond those wanted. The log grows and shrinks by a few segments all the time; deleting and recreating
# their files would write everything twice, once with zeros.
_SURPLUS: Final = 4
# The bytes zeroed per step; the next round may have to wait for one step.
_ZEROS: Final = bytes(1 << 20)


class Segment:
    """A file in use: the offsets of its rounds, and the live bytes of each."""

    __slots__ = ("_lives", "_offsets", "end", "first_round", "live", "name", "number", "size")

    def __init__(self, *, number: int, name: str, size: int, first_round: int) -> None:
        self.number = number
        self.name = name
        self.size = size
        self.first_round = first_round
        self.end = HEADER_BYTES
        self.live = 0
        self._offsets = array("Q")
        self._lives = array("q")

    @property
    def next_round(self) -> int:
        """The number of the next round in this segment."""
        return self.first_round + len(self._offsets)

    @property
    def blank(self) -> bool:
        """Whether the segment has no round yet, so the header must be written with the next one."""
        return not self._offsets

    def add_round(self, end: int) -> None:
        """Record the next round, which ends at this offset."""
        self._offsets.append(self.end)
        self._lives.append(0)
        self.end = end

    def count(self, round_: int, size: int) -> None:
        """Add to a round's live bytes; a negative size subtracts."""
        self._lives[round_ - self.first_round] += size
        self.live += size

    def next_live(self, round_: int) -> int:
        """Return the first round with live bytes at or after this one, or `next_round`."""
        lives, at = self._lives, round_ - self.first_round
        while at < len(lives) and not lives[at]:
            at += 1
        return self.first_round + at

    def live_in(self, round_: int) -> int:
        """Return the live bytes of a round."""
        return self._lives[round_ - self.first_round]

    def place(self, round_: int) -> tuple[int, int]:
        """Return the offsets where a round begins and ends."""
        at = round_ - self.first_round
        return self._offsets[at], self._offsets[at + 1] if at + 1 < len(self._offsets) else self.end


class Slots:
    """The spare files, all of one size; the first is used next."""

    def __init__(self, disk: Disk, *, size: int, wanted: int) -> None:
        self._disk = disk
        self._size = size
        self._wanted = wanted
        self._next_name = 0
        self._unzeroed: dict[str, int] = {}
        self.spares: list[str] = []

    @property
    def capacity(self) -> int:
        """The bytes of rounds that fit into a segment."""
        return self._size - HEADER_BYTES

    @property
    def lacks_spares(self) -> bool:
        """Whether there are fewer spares than wanted."""
        return len(self.spares) < self._wanted

    @property
    def unprepared(self) -> bool:
        """Whether there are too few spares, or some that are not zeroed yet."""
        return self.lacks_spares or bool(self._unzeroed)

    def adopt(self, name: str, *, spare: bool) -> None:
        """Register a file of an earlier process; `spare` if nothing in it is needed."""
        self._next_name = max(self._next_name, int(name.removesuffix(_SUFFIX), 16) + 1)
        if spare:
            self.release(name, self._disk.size(name))

    def take(self, need: int, *, reserve: int) -> tuple[str, int]:
        """Return the name and size of a file for a header and `need` bytes; `reserve` spares must remain."""
        if need > self.capacity:
            self.ensure_spares(reserve)
            return self._allocate_large(HEADER_BYTES + need), HEADER_BYTES + need
        self.ensure_spares(reserve + 1)
        name = self.spares.pop(0)
        self._unzeroed.pop(name, None)
        return name, self._size

    def ensure_spares(self, spares: int) -> None:
        """Allocate spares until there are this many, or raise `DiskFullError`."""
        while len(self.spares) < spares:
            name = self._allocate(self._size)
            self._unzeroed[name] = 0
            self.spares.append(name)

    def release(self, name: str, size: int) -> None:
        """Keep a file without live rounds as a spare, or delete it."""
        if size == self._size and len(self.spares) < self._wanted + _SURPLUS:
            self.spares.append(name)
        else:
            self._disk.delete(name)

    def prepare(self) -> bool:
        """Allocate or zero a spare by one step; returns whether more steps are needed."""
        if self.lacks_spares:
            self.ensure_spares(len(self.spares) + 1)
        elif self._unzeroed:
            self._zero(*next(iter(self._unzeroed.items())))
        return self.unprepared

    def _zero(self, name: str, offset: int) -> None:
        size = min(len(_ZEROS), self._size - offset)
        write_or_full(self._disk, name, offset, memoryview(_ZEROS)[:size])
        self._disk.sync(name)
        if offset + size < self._size:
            self._unzeroed[name] = offset + size
        else:
            del self._unzeroed[name]

    def _allocate_large(self, size: int) -> str:
        """Allocate a file larger than a spare; on a full disk surplus spares are deleted to make room."""
        while True:
            try:
                return self._allocate(size)
            except DiskFullError:
                if len(self.spares) <= self._wanted:
                    raise
                name = self.spares.pop()
                self._unzeroed.pop(name, None)
                self._disk.delete(name)

    def _allocate(self, size: int) -> str:
        name = f"{self._next_name:08x}{_SUFFIX}"
        with _disk_full_errors(f"the disk is full: no room for another {size} bytes of log"):
            self._disk.allocate(name, size)
        self._next_name += 1
        return name


def write_or_full(disk: Disk, name: str, offset: int, data: Bytes) -> None:
    """Write to a file; raises `DiskFullError` if the file system runs out of space only now."""
    with _disk_full_errors(f"the disk is full: no room to write to {name}"):
        disk.write(name, offset, data)


@contextmanager
def _disk_full_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(f"{what}; free or add disk space") from error
        raise


def is_slot(name: str) -> bool:
    """Whether a file name is one of the log's."""
    stem = name.removesuffix(_SUFFIX)
    return name.endswith(_SUFFIX) and len(stem) >= 8 and all(digit in "0123456789abcdef" for digit in stem)

"""The number of the last transaction that was durable, in a small file beside the database.

DuckDB takes a write-ahead log whose entry is longer than the rest of the file for one that a crash cut short, and
begins where it ends. One flipped bit in a length looks the same, and would silently undo what was acknowledged. So
the number is written after each commit, and compared when the database is opened. It is not synced: it may be older
than the database after a power cut, which finds less and never too much.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path
from typing import Final

__all__ = ["Watermark"]

_NUMBER: Final = struct.Struct("<QI")
"""The number, and the checksum of its bytes."""


class Watermark:
    """The file, opened. Used by the thread that applies."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def read(self) -> int:
        """Return the number; 0 where there is none that can be believed."""
        data = os.pread(self._file, _NUMBER.size, 0)
        if len(data) < _NUMBER.size:
            return 0
        number, checksum = _NUMBER.unpack(data)
        return int(number) if checksum == _checksum(number) else 0

    def write(self, number: int) -> None:
        """Remember a transaction that is durable."""
        with contextlib.suppress(OSError):
            os.pwrite(self._file, _NUMBER.pack(number, _checksum(number)), 0)

    def forget(self) -> None:
        """Begin anew, with a database that has no transactions."""
        os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def _checksum(number: int) -> int:
    return zlib.crc32(number.to_bytes(8, "little"))

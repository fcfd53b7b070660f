"""The number of the last durable transaction, in a small file beside the database.

If an entry of DuckDB's write-ahead log is longer than the rest of the file, DuckDB assumes a crash and drops it. A bit
flipped in a length looks the same, and would silently undo acknowledged writes. So the number is written after each
commit and compared when the database is opened. The file is not synced: after a power failure it may be older than the
database, which then hides a loss but never reports a false one.
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
"""The number and its checksum."""


class Watermark:
    """The open file; used by the apply thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def read(self) -> int:
        """Return the number; 0 if there is none with a valid checksum."""
        data = os.pread(self._file, _NUMBER.size, 0)
        if len(data) < _NUMBER.size:
            return 0
        number, checksum = _NUMBER.unpack(data)
        return int(number) if checksum == _checksum(number) else 0

    def write(self, number: int) -> None:
        """Record a durable transaction."""
        with contextlib.suppress(OSError):
            os.pwrite(self._file, _NUMBER.pack(number, _checksum(number)), 0)

    def reset(self) -> None:
        """Clear the number, for an empty database."""
        os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _checksum(number: int) -> int:
    return zlib.crc32(number.to_bytes(8, "little"))

"""Damages files like a bad disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb

__all__ = ["flip", "flip_blocks", "flip_rows"]

_HEADERS, _BLOCK = 3 * 4096, 256 << 10
"""The sizes of a DuckDB file's headers and blocks."""


def flip(at: float | int, size: int = 64) -> Callable[[Path], None]:
    """Return a function that changes bytes at an offset, or at a fraction of the file."""

    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        first = int(at * len(data)) if isinstance(at, float) else at
        assert first + size <= len(data), f"{path} has {len(data)} bytes"
        for place in range(first, first + size):
            data[place] ^= 0xA5
        path.write_bytes(data)

    return change


def flip_rows(path: Path) -> None:
    """Change bytes in a block that holds rows."""
    with duckdb.connect(str(path), read_only=True) as connection:
        tables = [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        blocks = [
            block
            for table in tables
            if table.startswith(("rows_", "log_"))
            for (block,) in connection.execute(f"SELECT block_id FROM pragma_storage_info('{table}')").fetchall()
            if block is not None and block >= 0
        ]
    assert blocks, "no row is in a block of its own"
    flip(_HEADERS + max(blocks) * _BLOCK + 1000)(path)


def flip_blocks(path: Path) -> None:
    """Change a byte in every page of a database's data, as a bad disk would."""
    data = bytearray(path.read_bytes())
    for place in range(_HEADERS + _BLOCK, len(data), 4096):
        data[place + 99] ^= 0xFF
    with path.open("r+b") as stream:
        stream.write(data)

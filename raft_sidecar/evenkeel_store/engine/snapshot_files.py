"""Snapshots: a group as files, and back.

    about           JSON: format, index, and the checksum of every other file
    state           metadata and write tokens
    log.parquet     the group's part of the log
    rows-0.parquet  the group's other tables, each in as many files as it has steps

A snapshot is written from one transaction that begins between two of the apply thread, on a cursor and thread of its
own, so writes go on. It is restored into new tables that one short transaction makes the group's. Tables of an
interrupted restore are dropped at the next start.

Writing and restoring proceed in steps of one file (`snapshot_throttle`), small enough not to disturb clients.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import duckdb
import msgspec
from msgspec import Struct

from evenkeel.errors import StateMachineError
from evenkeel_store.engine.database import Cursor, Database, run
from evenkeel_store.engine.journal import KeptGroup, decode_kept, encode_kept
from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle
from evenkeel_store.engine.table_layout import TableLayout

__all__ = ["STEP_ROWS", "SnapshotFiles", "copy_rows", "fill_log", "load_tables", "read_files", "write_files"]

_FORMAT: Final = 3
_WITHOUT_LOG_TIME: Final = 2
"""The format of the first release, which keeps no log time and would expire tokens at other indexes."""
_COPY: Final = "(FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, ROW_GROUP_SIZE 122880)"
"""The encodings of version 2 leave little to compress, which makes writing a third cheaper."""
STEP_ROWS: Final = 122_880
"""The size of DuckDB's row groups, so that no two steps read the same one."""
_MAX_STEPS: Final = 256


class _About(Struct):
    format: int
    index: int
    checksums: dict[str, str]


class SnapshotFiles:
    """A snapshot whose checksums are verified."""

    def __init__(self, directory: Path, names: list[str], kept: KeptGroup) -> None:
        self.directory = directory
        self.names = names
        self.kept = kept

    def layout(self, group: int, *, rows: int) -> TableLayout | None:
        """Return a layout for its rows with this table number; None if it has no columns yet."""
        metadata = self.kept.metadata
        if metadata.schema is None:
            return None
        return TableLayout(group, metadata.schema, rows=rows, log=0, changes=metadata.changes)

    def of(self, table: str) -> list[str]:
        """Return the files of a table."""
        return [name for name in self.names if name.startswith(f"{_kind(table)}-")]


def _parts(cursor: Cursor, layout: TableLayout) -> Iterator[tuple[str, str]]:
    """Yield the name of each file and the query for its rows."""
    for table in layout.tables():
        order = " ORDER BY i, s" if table == layout.change_table else ""
        for number, rows in enumerate(_ranges(cursor, table)):
            where = f"rowid >= {rows.start} AND rowid < {rows.stop}"
            yield f"{_kind(table)}-{number}.parquet", f"SELECT * FROM {table} WHERE {where}{order}"
    yield "log.parquet", f"SELECT * EXCLUDE g FROM {layout.log} WHERE g = {layout.group}"


def _ranges(cursor: Cursor, table: str) -> Iterator[range]:
    [(last,)] = cursor.execute(f"SELECT max(rowid) FROM {table}").fetchall()
    end = 0 if last is None else last + 1
    step = STEP_ROWS * max(1, -(-end // (STEP_ROWS * _MAX_STEPS)))
    return (range(start, start + step) for start in range(0, max(1, end), step))


def _kind(table: str) -> str:
    return table.partition("_")[0]


def copy_rows(cursor: Cursor, query: str, file: Path) -> int:
    """Write the result of a query to a snapshot file; returns the number of rows."""
    [(rows,)] = cursor.execute(f"COPY ({query}) TO {_quoted(file)} {_COPY}").fetchall()
    return int(rows)


def write_files(
    cursor: Cursor, layout: TableLayout | None, kept: KeptGroup, directory: Path, *, throttle: SnapshotThrottle
) -> list[str]:
    """Write a snapshot within the cursor's transaction; returns the names of its files.

    Nothing is synced: the files are sent and deleted, useless after a crash, and a sync would delay all others.
    """
    checksums: dict[str, str] = {}

    def write(name: str, query: str) -> None:
        copy_rows(cursor, query, directory / name)
        checksums[name] = _checksum(directory / name)

    for name, query in _parts(cursor, layout) if layout is not None else ():
        throttle.step(partial(write, name, query))
    (directory / "state").write_bytes(encode_kept(kept))
    checksums["state"] = _checksum(directory / "state")
    (directory / "about").write_bytes(
        msgspec.json.encode(
            _About(_FORMAT if kept.metadata.time else _WITHOUT_LOG_TIME, kept.metadata.applied, checksums)
        )
    )
    return ["about", *checksums]


def read_files(directory: Path, *, index: int) -> SnapshotFiles:
    """Verify the files; `StateMachineError` if they are not the complete, undamaged snapshot at this index."""
    about = _read_about(directory)
    if about.index != index:
        raise StateMachineError(f"snapshot in {directory} is at index {about.index}, not {index}")
    for name, checksum in about.checksums.items():
        if _checksum(directory / name) != checksum:
            raise StateMachineError(f"snapshot in {directory}: `{name}` does not have the checksum in `about`")
    try:
        kept = decode_kept((directory / "state").read_bytes())
    except (OSError, ValueError) as error:
        raise StateMachineError(f"snapshot in {directory}: cannot read `state`: {error}") from error
    return SnapshotFiles(directory, list(about.checksums), kept)


def _read_about(directory: Path) -> _About:
    try:
        about = msgspec.json.decode((directory / "about").read_bytes(), type=_About)
    except (OSError, ValueError) as error:
        raise StateMachineError(f"snapshot in {directory}: cannot read `about`: {error}") from error
    if about.format not in (_WITHOUT_LOG_TIME, _FORMAT):
        reads = f"this store reads {_WITHOUT_LOG_TIME} and {_FORMAT}"
        raise StateMachineError(f"snapshot in {directory}: format {about.format}, and {reads}: run a newer release")
    return about


def load_tables(database: Database, files: SnapshotFiles, layout: TableLayout, *, throttle: SnapshotThrottle) -> None:
    """Create and fill the group's own tables, under a number that nothing refers to yet."""
    with contextlib.closing(database.cursor()) as cursor:
        try:
            with database.transaction(cursor):
                run(cursor, *layout.create())
                for table in layout.tables():
                    for name in files.of(table):
                        throttle.step(partial(_fill, cursor, table, files.directory / name))
        except duckdb.Error as error:
            raise StateMachineError(f"snapshot in {files.directory} cannot be loaded: {error}") from error


def fill_log(files: SnapshotFiles, layout: TableLayout, cursor: Cursor) -> None:
    """Insert the group's part of the log, within a transaction."""
    source = _quoted(files.directory / "log.parquet")
    run(cursor, f"INSERT INTO {layout.log} SELECT {layout.group}, * FROM read_parquet({source})")


def _fill(cursor: Cursor, table: str, file: Path) -> None:
    run(cursor, f"INSERT INTO {table} SELECT * FROM read_parquet({_quoted(file)})")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _checksum(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise StateMachineError(f"snapshot: cannot read {file}: {error.strerror}") from error

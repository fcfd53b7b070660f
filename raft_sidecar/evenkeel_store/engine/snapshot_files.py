"""A group as files, and back.

    about           JSON: format, index, and the checksum of every other file
    state           head and tokens
    log.parquet     the group's part of the log
    rows-0.parquet  the group's other tables, each in as many files as there are steps to write it in

A snapshot is written from one transaction that began between two of the thread that applies, on a cursor and a thread
of its own: writes go on meanwhile. It is restored into new tables, whose place in the database nobody knows of until
one short transaction makes them the group's. What is left of a restore that was cut short is deleted at the next start.

Both go in steps of a file (`pace`), which are small, or clients would notice.
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
"""What the first release reads: it would not keep log time, and forget tokens at other indexes than the others."""
_COPY: Final = "(FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, ROW_GROUP_SIZE 122880)"
"""The second version's encodings leave so little to compress that it is all together a third cheaper."""
STEP_ROWS: Final = 122_880
"""What DuckDB keeps together, so that a step reads nothing that another one reads as well."""
_MOST_STEPS: Final = 256


class _About(Struct):
    format: int
    index: int
    checksums: dict[str, str]


class SnapshotFiles:
    """A snapshot whose files are what they should be."""

    def __init__(self, directory: Path, names: list[str], kept: KeptGroup) -> None:
        self.directory = directory
        self.names = names
        self.kept = kept

    def layout(self, group: int, *, rows: int) -> TableLayout | None:
        """Return where its rows go, given the number of its tables; None where it has no columns yet."""
        metadata = self.kept.metadata
        if metadata.schema is None:
            return None
        return TableLayout(group, metadata.schema, rows=rows, log=0, changes=metadata.changes)

    def of(self, table: str) -> list[str]:
        """Return which files a table was written to."""
        return [name for name in self.names if name.startswith(f"{_kind(table)}-")]


def _parts(cursor: Cursor, layout: TableLayout) -> Iterator[tuple[str, str]]:
    """Yield the name of each file and what is in it."""
    for table in layout.tables():
        order = " ORDER BY i, s" if table == layout.kept else ""
        for number, rows in enumerate(_ranges(cursor, table)):
            where = f"rowid >= {rows.start} AND rowid < {rows.stop}"
            yield f"{_kind(table)}-{number}.parquet", f"SELECT * FROM {table} WHERE {where}{order}"
    yield "log.parquet", f"SELECT * EXCLUDE g FROM {layout.log} WHERE g = {layout.group}"


def _ranges(cursor: Cursor, table: str) -> Iterator[range]:
    [(last,)] = cursor.execute(f"SELECT max(rowid) FROM {table}").fetchall()
    end = 0 if last is None else last + 1
    step = STEP_ROWS * max(1, -(-end // (STEP_ROWS * _MOST_STEPS)))
    return (range(start, start + step) for start in range(0, max(1, end), step))


def _kind(table: str) -> str:
    return table.partition("_")[0]


def copy_rows(cursor: Cursor, query: str, file: Path) -> int:
    """Write what a query finds to a file of a snapshot; returns how many rows there are."""
    [(rows,)] = cursor.execute(f"COPY ({query}) TO {_quoted(file)} {_COPY}").fetchall()
    return int(rows)


def write_files(
    cursor: Cursor, layout: TableLayout | None, kept: KeptGroup, directory: Path, *, throttle: SnapshotThrottle
) -> list[str]:
    """Write a snapshot inside the transaction that the cursor is in; returns the names of its files.

    Nothing is synced: it is sent and deleted, and after a crash of no use. Everybody else's syncs would wait for it.
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
    """Check the files; `StateMachineError` where they are not the snapshot at this index, whole and unharmed."""
    about = _read_about(directory)
    if about.index != index:
        raise StateMachineError(f"snapshot in {directory} is at index {about.index}, not {index}")
    for name, checksum in about.checksums.items():
        if _checksum(directory / name) != checksum:
            raise StateMachineError(f"snapshot in {directory}: `{name}` does not have the checksum that `about` names")
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
    """Make and fill the group's own tables, under a number that nothing refers to yet."""
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
    """Add the group's part of the log, inside a transaction."""
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

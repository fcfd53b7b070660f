"""A group as files, and back.

    about     JSON: format, index, and the checksum of every other file
    state     head and tokens
    *.parquet the group's tables, one file each, in the order they are read back

A snapshot is written from one transaction that began between two of the thread that applies, on a cursor and a thread
of its own: writes go on meanwhile. It is restored into new tables, whose place in the database nobody knows of until
one short transaction makes them the group's. What is left of a restore that was cut short is deleted at the next start.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb
import msgspec
from msgspec import Struct

from evenkeel.errors import StateMachineError
from evenkeel_store.database import Cursor, Database, run
from evenkeel_store.journal import KeptGroup, decode_kept, encode_kept
from evenkeel_store.layout import Layout

__all__ = ["SnapshotFiles", "fill_log", "load_tables", "read_files", "write_files"]

_FORMAT: Final = 1
_COPY: Final = "(FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, ROW_GROUP_SIZE 122880)"
"""The second version's encodings leave so little to compress that it is all together a third cheaper."""


class _About(Struct):
    format: int
    index: int
    checksums: dict[str, str]


class SnapshotFiles:
    """A snapshot whose files are what they should be."""

    def __init__(self, directory: Path, kept: KeptGroup) -> None:
        self.directory = directory
        self.kept = kept

    def layout(self, group: int, *, rows: int) -> Layout | None:
        """Return where its rows go, given the number of its tables; None where it has no columns yet."""
        head = self.kept.head
        if head.schema is None:
            return None
        return Layout(group, head.schema, rows=rows, log=0, changes=head.changes)


def _parts(layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield the name of each file and what is in it."""
    yield "rows.parquet", f"SELECT * FROM {layout.rows}"
    yield "log.parquet", f"SELECT * EXCLUDE g FROM {layout.log} WHERE g = {layout.group}"
    if layout.keyed:
        yield "old.parquet", f"SELECT * FROM {layout.old}"
    if layout.changes:
        yield "changes.parquet", f"SELECT * FROM {layout.kept} ORDER BY i, s"


def write_files(cursor: Cursor, layout: Layout | None, kept: KeptGroup, directory: Path) -> list[str]:
    """Write a snapshot inside the transaction that the cursor is in; returns the names of its files.

    Nothing is synced: it is sent and deleted, and after a crash of no use. Everybody else's syncs would wait for it.
    """
    names = []
    for name, query in _parts(layout) if layout is not None else ():
        run(cursor, f"COPY ({query}) TO {_quoted(directory / name)} {_COPY}")
        names.append(name)
    (directory / "state").write_bytes(encode_kept(kept))
    names.append("state")
    about = _About(_FORMAT, kept.head.applied, {name: _checksum(directory / name) for name in names})
    (directory / "about").write_bytes(msgspec.json.encode(about))
    return ["about", *names]


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
    return SnapshotFiles(directory, kept)


def _read_about(directory: Path) -> _About:
    try:
        about = msgspec.json.decode((directory / "about").read_bytes(), type=_About)
    except (OSError, ValueError) as error:
        raise StateMachineError(f"snapshot in {directory}: cannot read `about`: {error}") from error
    if about.format != _FORMAT:
        raise StateMachineError(f"snapshot in {directory}: format {about.format}, and this store reads {_FORMAT}")
    return about


def load_tables(database: Database, files: SnapshotFiles, layout: Layout) -> None:
    """Make and fill the group's own tables, under a number that nothing refers to yet."""
    with contextlib.closing(database.cursor()) as cursor:
        try:
            with database.transaction(cursor):
                run(cursor, *layout.create())
                for table in layout.tables():
                    _fill(cursor, table, files.directory / f"{table.partition('_')[0]}.parquet")
        except duckdb.Error as error:
            raise StateMachineError(f"snapshot in {files.directory} cannot be loaded: {error}") from error


def fill_log(files: SnapshotFiles, layout: Layout, cursor: Cursor) -> None:
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

"""One DuckDB file: settings, cursors, transactions, and the meaning of errors.

DuckDB's automatic checkpoints run inside a commit. If one fails because the disk is full, DuckDB reports a durable
commit as failed, and the database is unusable until it is reopened. So the store runs its own checkpoints
(`checkpoint`) outside of commits, and automatic ones are only a fallback.

A damaged database file is set aside for inspection and replaced by an empty one; the sidecar then restores the groups
from their leaders. That must not happen to the database of a newer release, which this one cannot read either: a file
beside the database names its format, and a newer format is refused before the database is opened.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import duckdb
import msgspec
import pyarrow as pa
from duckdb import DuckDBPyConnection as Cursor

from evenkeel.errors import UnsupportedVersionError
from evenkeel.runtime.directories import replace_file
from evenkeel_store.engine.commit_watermark import Watermark

__all__ = ["Cursor", "Database", "insert", "is_damage", "is_fatal", "run"]

_FORMAT: Final = 1
"""Raised with a change of the tables or their contents that the release before cannot read or must not write."""
_DAMAGED: Final = (
    "corrupt",
    "checksum",
    "not a valid duckdb database",
    "failure while replaying wal",
    "this wal was created",
    # The file was truncated, or the disk cannot read it.
    "could not read enough bytes",
    "could not read from file",
)
_SETTINGS: Final = (
    "SET TimeZone = 'UTC'",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    # Rows are found by key; keeping their order would cost memory.
    "SET preserve_insertion_order = false",
)


def is_damage(error: BaseException) -> bool:
    """Whether an error means that the file is damaged."""
    text = str(error).lower()
    return isinstance(error, duckdb.Error) and any(word in text for word in _DAMAGED)


def is_fatal(error: BaseException) -> bool:
    """Whether an error means that the database must be reopened."""
    return isinstance(error, duckdb.FatalException)


def run(cursor: Cursor, *statements: str) -> None:
    """Run statements and ignore their results."""
    for statement in statements:
        cursor.execute(statement)


def insert(cursor: Cursor, table: str, incoming: pa.Table) -> None:
    """Insert rows with the table's columns, in the table's order."""
    if incoming.num_rows:
        # DuckDB finds the variable `incoming` by its name. Registering it would double the cost.
        cursor.execute(f"INSERT INTO {table} SELECT * FROM incoming")


def _check_format(database: Path) -> None:
    """Refuse a database of a newer format; without a format file it is of the first release."""
    format_file = database.with_name(f"{database.name}.format")
    try:
        found = msgspec.json.decode(format_file.read_bytes(), type=dict[str, int])["format"]
    except FileNotFoundError:
        with contextlib.suppress(OSError):  # the disk is full: the next start writes it
            replace_file(format_file, msgspec.json.encode({"format": _FORMAT}))
        return
    except (OSError, ValueError, RecursionError, KeyError) as error:
        raise UnsupportedVersionError(
            f"cannot read the format of the database from {format_file}: {error}; give the store an empty volume"
        ) from error
    if found > _FORMAT:
        raise UnsupportedVersionError(
            f"{database} has format {found}, and this release reads up to {_FORMAT}: run the newer release, or give "
            "the store an empty volume and let its replicas be restored from their leaders"
        )


class Database:
    """The open file. `damage` is why an earlier file was set aside; empty if none was."""

    def __init__(self, path: Path, *, memory: str = "", threads: int = 0, wal_limit: int = 64 << 20) -> None:
        _check_format(path)
        self._path = path
        self._wal = path.with_name(f"{path.name}.wal")
        self._config: dict[str, str | bool | int | float | list[str]] = {"temp_directory": str(path.with_name("spill"))}
        if memory:
            self._config["memory_limit"] = memory
        if threads:
            self._config["threads"] = threads
        self._wal_limit = wal_limit
        self._lock = threading.Lock()
        self.before_reopening: list[Callable[[], None]] = []
        """Called to close half-read results: DuckDB cannot reopen the file while there are any."""
        self.damage = ""
        self.watermark = Watermark(path.with_name(f"{path.name}.last"))
        self._connection = self._open()

    def _open(self) -> Cursor:
        try:
            return self._connect()
        except duckdb.Error as error:
            if not is_damage(error):
                raise
            self._set_aside(error)
            return self._connect()

    def _set_aside(self, error: BaseException) -> None:
        self.damage = f"{self._path}: {str(error).partition(chr(10))[0]}"
        for leftover in (self._path, self._wal):
            if leftover.exists():
                leftover.replace(leftover.with_name(f"{leftover.name}.damaged"))
        self.watermark.reset()

    def reset(self, error: BaseException) -> None:
        """Set the unreadable file aside and begin with an empty one."""
        with self._lock:
            self._disconnect()
            self._set_aside(error)
            self._connection = self._connect()

    def _connect(self) -> Cursor:
        connection = duckdb.connect(str(self._path), config=self._config)
        run(connection, *_SETTINGS, f"SET checkpoint_threshold = '{8 * self._wal_limit} bytes'")
        return connection

    def cursor(self) -> Cursor:
        """Return a new connection, for one thread at a time."""
        with self._lock:
            return self._connection.cursor()

    def reopen(self) -> None:
        """Reopen the file after a fatal error; older cursors become invalid."""
        with self._lock:
            self._disconnect()
            self._connection = self._open()

    def _disconnect(self) -> None:
        for callback in self.before_reopening:
            callback()
        with contextlib.suppress(duckdb.Error):
            self._connection.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()
            self.watermark.close()

    @contextlib.contextmanager
    def transaction(self, cursor: Cursor) -> Iterator[None]:
        """Commit everything inside durably, or nothing."""
        cursor.execute("BEGIN")
        try:
            yield
            cursor.execute("COMMIT")
        except BaseException:
            # A failed commit has already rolled back.
            with contextlib.suppress(duckdb.Error):
                cursor.execute("ROLLBACK")
            raise

    @property
    def directory(self) -> Path:
        """The directory of the file."""
        return self._path.parent

    @property
    def wal_bytes(self) -> int:
        """The size of the write-ahead log."""
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def bytes(self) -> int:
        """The size of the file and its write-ahead log."""
        return self._path.stat().st_size + self.wal_bytes

    def checkpoint(self, *, always: bool = False) -> None:
        """Move the write-ahead log into the file, if it is long enough."""
        if always or self.wal_bytes > self._wal_limit:
            with contextlib.closing(self.cursor()) as cursor:
                cursor.execute("CHECKPOINT")

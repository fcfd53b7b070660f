"""One DuckDB file: settings, cursors, transactions, and which errors mean what.

DuckDB's own checkpoints happen inside somebody's commit; one that fails (the disk is full) then reports a commit that
is durable as failed, and leaves the database unusable until it is opened again. So checkpoints are ours to begin
(`checkpoint`), at moments when nothing is at stake, and the automatic ones are only there should we never get to it.

A database whose file is damaged is put aside, for people to look at, and begun anew: the sidecar is told, and fills the
groups from their leaders. That must not happen to a database of a newer release, which an older one cannot read either:
a file beside it names the format, and a newer one is refused before the database is opened.
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
"""Of the tables and of what is in them: raised with a change that the release before cannot read or must not write."""
_DAMAGED: Final = (
    "corrupt",
    "checksum",
    "not a valid duckdb database",
    "failure while replaying wal",
    "this wal was created",
    # It is shorter than it was, or the disk cannot read it.
    "could not read enough bytes",
    "could not read from file",
)
_SETTINGS: Final = (
    "SET TimeZone = 'UTC'",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    # Rows are found by key; an order that nobody asked for costs memory.
    "SET preserve_insertion_order = false",
)


def is_damage(error: BaseException) -> bool:
    """Whether an error says that the file is not what was written."""
    text = str(error).lower()
    return isinstance(error, duckdb.Error) and any(word in text for word in _DAMAGED)


def is_fatal(error: BaseException) -> bool:
    """Whether the database has to be opened again before anything else can be done."""
    return isinstance(error, duckdb.FatalException)


def run(cursor: Cursor, *statements: str) -> None:
    """Run statements that return nothing of interest."""
    for statement in statements:
        cursor.execute(statement)


def insert(cursor: Cursor, table: str, incoming: pa.Table) -> None:
    """Add rows whose columns are the table's, in its order."""
    if incoming.num_rows:
        # DuckDB finds the argument by its name. To register it would be to make a view, which costs as much again.
        cursor.execute(f"INSERT INTO {table} SELECT * FROM incoming")


def _check_format(database: Path) -> None:
    """Refuse a database of a newer format; where no format is noted, it is of the first release."""
    note = database.with_name(f"{database.name}.format")
    try:
        found = msgspec.json.decode(note.read_bytes(), type=dict[str, int])["format"]
    except FileNotFoundError:
        with contextlib.suppress(OSError):  # the disk is full: the next start notes it
            replace_file(note, msgspec.json.encode({"format": _FORMAT}))
        return
    except (OSError, ValueError, RecursionError, KeyError) as error:
        raise UnsupportedVersionError(
            f"{note} does not name the format of the database: {error}; give the store an empty volume"
        ) from error
    if found > _FORMAT:
        raise UnsupportedVersionError(
            f"{database} has format {found}, and this release reads up to {_FORMAT}: run the newer release, or give "
            "the store an empty volume, and its replicas are filled from their leaders"
        )


class Database:
    """The file, opened. `damage` says why an earlier file was put aside; empty where all was well."""

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
        """Asked to let go of results that are half read: DuckDB does not open the file while there are any."""
        self.damage = ""
        self.watermark = Watermark(path.with_name(f"{path.name}.last"))
        self._connection = self._open()

    def _open(self) -> Cursor:
        try:
            return self._connect()
        except duckdb.Error as error:
            if not is_damage(error):
                raise
            self._put_aside(error)
            return self._connect()

    def _put_aside(self, error: BaseException) -> None:
        self.damage = f"{self._path}: {str(error).partition(chr(10))[0]}"
        for leftover in (self._path, self._wal):
            if leftover.exists():
                leftover.replace(leftover.with_name(f"{leftover.name}.damaged"))
        self.watermark.forget()

    def begin_anew(self, error: BaseException) -> None:
        """Put the file aside, for it cannot be read, and begin with an empty one."""
        with self._lock:
            self._let_go()
            self._put_aside(error)
            self._connection = self._connect()

    def _connect(self) -> Cursor:
        connection = duckdb.connect(str(self._path), config=self._config)
        run(connection, *_SETTINGS, f"SET checkpoint_threshold = '{8 * self._wal_limit} bytes'")
        return connection

    def cursor(self) -> Cursor:
        """A connection of one's own, to be used by one thread at a time."""
        with self._lock:
            return self._connection.cursor()

    def reopen(self) -> None:
        """Open the file again after a fatal error; cursors from before are of no use any more."""
        with self._lock:
            self._let_go()
            self._connection = self._open()

    def _let_go(self) -> None:
        for let_go in self.before_reopening:
            let_go()
        with contextlib.suppress(duckdb.Error):
            self._connection.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()
            self.watermark.close()

    @contextlib.contextmanager
    def transaction(self, cursor: Cursor) -> Iterator[None]:
        """Everything inside happens, durably, or nothing does."""
        cursor.execute("BEGIN")
        try:
            yield
            cursor.execute("COMMIT")
        except BaseException:
            # A commit that failed has rolled back by itself already.
            with contextlib.suppress(duckdb.Error):
                cursor.execute("ROLLBACK")
            raise

    @property
    def directory(self) -> Path:
        """Where the file is."""
        return self._path.parent

    @property
    def wal_bytes(self) -> int:
        """How much a start would have to replay."""
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def bytes(self) -> int:
        """What the file and its write-ahead log take."""
        return self._path.stat().st_size + self.wal_bytes

    def checkpoint(self, *, always: bool = False) -> None:
        """Move what the write-ahead log holds into the file, where that is due."""
        if always or self.wal_bytes > self._wal_limit:
            with contextlib.closing(self.cursor()) as cursor:
                cursor.execute("CHECKPOINT")

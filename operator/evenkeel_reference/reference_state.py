"""The groups and their keys in one SQLite file.

One transaction holds the changes of a batch, their write tokens and the applied index, so state and index match after a
crash. SQLite's write-ahead log is synced at every commit (`synchronous=FULL`), so acknowledged changes survive a power
loss.

All methods block, and must be called from one thread.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from evenkeel.errors import StateMachineError
from evenkeel.wire.socket_messages import Apply
from evenkeel_reference.reference_entries import (
    TOKENS_KEPT,
    Barrier,
    Batch,
    Conditional,
    Delete,
    Entry,
    Upsert,
    decode_entry,
)

__all__ = ["BARRIERS_KEPT", "Contents", "Group", "State", "Value"]

BARRIERS_KEPT: Final = 100

_SCHEMA: Final = """
create table if not exists groups (grp integer primary key, replica integer not null, applied integer not null);
create table if not exists entries (
    grp integer, key blob, value blob not null, version integer not null, primary key (grp, key));
create table if not exists tokens (
    grp integer, writer text, sequence integer, ok integer not null, primary key (grp, writer, sequence)) without rowid;
create table if not exists barriers (
    grp integer, idx integer, hash text not null, primary key (grp, idx)) without rowid;
"""
# SQLite writes whole pages. This size suits rows of a hundred bytes, and large values do not need dozens of pages.
_PAGE_BYTES: Final = 16 << 10
# With a large write-ahead log, keys that are written often are copied to the database file less often.
_WAL_BYTES: Final = 64 << 20
_AUTOCHECKPOINT: Final = f"pragma wal_autocheckpoint = {_WAL_BYTES // _PAGE_BYTES}"
_CACHE_BYTES: Final = 64 << 20
_SET: Final = (
    "insert into entries values (?, ?, ?, 1) on conflict do update set value = excluded.value, version = version + 1"
)
_REMOVE: Final = "delete from entries where grp = ? and key = ?"
_TABLES: Final = ("groups", "entries", "tokens", "barriers")


class Group(NamedTuple):
    """A group in this file."""

    replica: int
    applied: int


class Value(NamedTuple):
    """The value of a key; `version` counts the writes since the key was created."""

    value: bytes
    version: int


class Contents(NamedTuple):
    """The contents of a group, as a snapshot holds them."""

    applied: int
    entries: Iterable[tuple[bytes, bytes, int]]
    tokens: Iterable[tuple[str, int, int]]
    barriers: Iterable[tuple[int, str]]


class State:
    """The open SQLite file; raises `sqlite3.DatabaseError` if it is damaged."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.needs_checkpoint = False
        """Whether the write-ahead log is larger than it should stay."""
        try:
            self._db.execute(f"pragma page_size = {_PAGE_BYTES}")
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
            self._db.execute(_AUTOCHECKPOINT)
            self._db.execute(f"pragma cache_size = -{_CACHE_BYTES >> 10}")
            self._db.executescript(_SCHEMA)
            found = self._db.execute("pragma quick_check").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # Groups

    def group(self, group: int) -> Group | None:
        """Return a group; None if it does not exist."""
        row = self._db.execute("select replica, applied from groups where grp = ?", (group,)).fetchone()
        return None if row is None else Group(*row)

    def create(self, group: int, replica: int) -> None:
        """Create a group; it replaces the data of another replica."""
        with self.transaction():
            self._delete(group)
            self._db.execute("insert into groups values (?, ?, 0)", (group, replica))

    def destroy(self, group: int, replica: int) -> None:
        """Delete a group, unless another replica has replaced it."""
        with self.transaction():
            known = self.group(group)
            if known is not None and known.replica == replica:
                self._delete(group)

    def _delete(self, group: int) -> None:
        for table in _TABLES:
            self._db.execute(f"delete from {table} where grp = ?", (group,))  # noqa: S608 - names from above

    # Applying

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes durably, or none of them."""
        self._db.execute("begin immediate")
        try:
            yield
            self._db.execute("commit")
        except BaseException:
            # SQLite rolls back by itself when the disk is full.
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise

    def apply(self, group: int, replica: int, request: Apply) -> int:
        """Apply entries inside a transaction; return the applied index.

        A failed request changes nothing: it is checked before the first change. A savepoint would be slower, because
        SQLite would copy every changed page.
        """
        try:
            self._check_consecutive(group, replica, request)
            entries = [(logged.index, decode_entry(logged.data)) for logged in request.entries]
        except (StateMachineError, ValueError) as error:
            raise StateMachineError(f"group {group} stopped before index {request.first}: {error}") from error
        for index, entry in entries:
            self._apply_entry(group, index, entry)
        self._db.execute("update groups set applied = ? where grp = ?", (request.last, group))
        return request.last

    def _check_consecutive(self, group: int, replica: int, request: Apply) -> None:
        known = self.group(group)
        if known is None or known.replica != replica:
            raise StateMachineError(f"it is not open for replica {replica}; open it first")
        if request.first != known.applied + 1:
            raise StateMachineError(f"the applied index is {known.applied}, so the next index is {known.applied + 1}")

    def _apply_entry(self, group: int, index: int, entry: Entry) -> None:
        if isinstance(entry, Barrier):
            self._record_hash(group, index)
        elif not entry.writer:
            self._change(group, entry)
        elif self._is_new(group, entry.writer, entry.sequence):
            ok = self._change(group, entry)
            self._db.execute("insert into tokens values (?, ?, ?, ?)", (group, entry.writer, entry.sequence, ok))
            self._delete_old_tokens(group, entry.writer)

    def _is_new(self, group: int, writer: str, sequence: int) -> bool:
        """Whether no entry with this token was applied; tokens older than the retained ones count as applied."""
        if self.outcome(group, writer, sequence) is not None:
            return False
        kept, oldest = self._db.execute(
            "select count(*), min(sequence) from tokens where grp = ? and writer = ?", (group, writer)
        ).fetchone()
        return bool(kept < TOKENS_KEPT or sequence > oldest)

    def _delete_old_tokens(self, group: int, writer: str) -> None:
        self._db.execute(
            "delete from tokens where grp = ?1 and writer = ?2 and sequence <= (select sequence from tokens "
            "where grp = ?1 and writer = ?2 order by sequence desc limit 1 offset ?3)",
            (group, writer, TOKENS_KEPT),
        )

    def _change(self, group: int, entry: Entry) -> bool:
        """Apply an entry; return False if its condition does not hold."""
        match entry:
            case Upsert(key=key, value=value):
                self._put(group, key, value)
            case Delete(key=key):
                self._put(group, key, None)
            case Conditional(key=key, expected=expected, value=value):
                held = self.get(group, key)
                if (None if held is None else held.value) != expected:
                    return False
                self._put(group, key, value)
            case Batch(changes=changes):
                self._put_all(group, changes)
        return True

    def _put_all(self, group: int, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Apply changes in order; runs of the same kind share one SQLite call."""
        for removes, run in groupby(changes, key=lambda change: change[1] is None):
            if removes:
                self._db.executemany(_REMOVE, ((group, key) for key, _ in run))
            else:
                self._db.executemany(_SET, ((group, key, value) for key, value in run))

    def _put(self, group: int, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._db.execute(_REMOVE, (group, key))
        else:
            self._db.execute(_SET, (group, key, value))

    def _record_hash(self, group: int, index: int) -> None:
        self._db.execute("insert into barriers values (?, ?, ?)", (group, index, self._hash(group)))
        self._db.execute(
            "delete from barriers where grp = ?1 and idx <= "
            "(select idx from barriers where grp = ?1 order by idx desc limit 1 offset ?2)",
            (group, BARRIERS_KEPT),
        )

    def _hash(self, group: int) -> str:
        """Return a sum of hashes, which does not depend on the order of keys."""
        total = 0
        for key, value, version in self._db.execute("select key, value, version from entries where grp = ?", (group,)):
            head = struct.pack("<QQQ", len(key), len(value), version)
            total += int.from_bytes(hashlib.blake2b(head + key + value, digest_size=8).digest(), "little")
        return f"{total % (1 << 64):016x}"

    # Reading

    def get(self, group: int, key: bytes) -> Value | None:
        """Return the value of a key; None if it does not exist."""
        row = self._db.execute("select value, version from entries where grp = ? and key = ?", (group, key)).fetchone()
        return None if row is None else Value(*row)

    def outcome(self, group: int, writer: str, sequence: int) -> bool | None:
        """Return whether the condition of the entry with this token held; None if the token is unknown."""
        row = self._db.execute(
            "select ok from tokens where grp = ? and writer = ? and sequence = ?", (group, writer, sequence)
        ).fetchone()
        return None if row is None else bool(row[0])

    def barriers(self, group: int) -> dict[int, str]:
        """Return the most recent hashes by index."""
        return dict(self._db.execute("select idx, hash from barriers where grp = ? order by idx", (group,)))

    # Snapshots

    def contents(self, group: int) -> Contents:
        """Return the contents of a group; read them inside one transaction."""
        known = self.group(group)
        if known is None:
            raise StateMachineError(f"group {group} is not open; open it first")
        return Contents(
            known.applied,
            self._db.execute("select key, value, version from entries where grp = ? order by key", (group,)),
            self._db.execute("select writer, sequence, ok from tokens where grp = ? order by 1, 2", (group,)),
            self._db.execute("select idx, hash from barriers where grp = ? order by idx", (group,)),
        )

    def replace(self, group: int, replica: int, contents: Contents) -> None:
        """Replace the contents of a group.

        The changes are durable in the write-ahead log, and stay there until `checkpoint` is called.
        """
        with self._without_checkpoint(), self.transaction():
            self._delete(group)
            self._db.execute("insert into groups values (?, ?, ?)", (group, replica, contents.applied))
            self._insert("entries", group, contents.entries)
            self._insert("tokens", group, contents.tokens)
            self._insert("barriers", group, contents.barriers)

    def checkpoint(self) -> None:
        """Copy the write-ahead log to the database file; a later commit retries a failure."""
        self.needs_checkpoint = False
        with suppress(sqlite3.Error):
            self._db.execute("pragma wal_checkpoint(passive)")

    @contextmanager
    def _without_checkpoint(self) -> Iterator[None]:
        """Disable checkpoints during commits."""
        self._db.execute("pragma wal_autocheckpoint = 0")
        try:
            yield
        finally:
            self.needs_checkpoint = True
            self._db.execute(_AUTOCHECKPOINT)

    def _insert(self, table: str, group: int, rows: Iterable[Sequence[object]]) -> None:
        width = {"entries": "?, ?, ?, ?", "tokens": "?, ?, ?, ?", "barriers": "?, ?, ?"}[table]
        self._db.executemany(f"insert into {table} values ({width})", ((group, *row) for row in rows))  # noqa: S608

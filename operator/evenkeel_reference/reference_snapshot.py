"""A group as files, and back.

`rows` holds frames of up to a thousand rows or about a MiB each; `about` says at which index, in which format, and
what the checksum of `rows` is. Whoever sends the files deletes them, so they need not be durable. Checksums are taken
on a thread of their own, beside the reading and the writing; rows that are read count for nothing until theirs is
known to be right, which is when the last of them was read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from evenkeel.errors import StateMachineError
from evenkeel.wire.framing import HEADER, MAX_FRAME_BYTES
from evenkeel_reference.reference_state import Contents

__all__ = ["read_snapshot", "write_snapshot"]

_FORMAT: Final = 1
_ROWS_PER_FRAME: Final = 1000
_PIECE: Final = 1 << 20
_TABLES: Final = ("entries", "tokens", "barriers")


class _About(Struct):
    format: int
    index: int
    sha256: str


class _Rows(Struct, array_like=True):
    table: str
    rows: list[Any]


def write_snapshot(directory: Path, contents: Contents) -> list[str]:
    """Write the files; returns their names."""
    digest, summed = hashlib.sha256(), None
    with (directory / "rows").open("wb") as file, ThreadPoolExecutor(1) as beside:
        for table in _TABLES:
            for batch in _batched(getattr(contents, table)):
                payload = msgspec.msgpack.encode(_Rows(table, batch))
                frame = HEADER.pack(len(payload)), payload
                file.writelines(frame)
                if summed is not None:
                    summed.result()  # one at a time: what is not summed yet is in memory
                summed = beside.submit(_add, digest, frame)
    about = _About(_FORMAT, contents.applied, digest.hexdigest())
    (directory / "about").write_bytes(msgspec.json.encode(about))
    return ["about", "rows"]


def _add(digest: hashlib._Hash, frame: Iterable[bytes]) -> None:
    for part in frame:
        digest.update(part)


def read_snapshot(directory: Path, *, index: int) -> Contents:
    """Read the files back; the tables' rows are to be read in their order, each to its end.

    `StateMachineError` where they are not the snapshot at this index, whole and unharmed; with the last row at the
    latest, so nothing may be kept of them before.
    """
    try:
        about = msgspec.json.decode((directory / "about").read_bytes(), type=_About)
    except (OSError, ValueError) as error:
        raise StateMachineError(f"snapshot in {directory}: cannot read `about`: {error}") from error
    if about.format != _FORMAT:
        raise StateMachineError(f"snapshot in {directory}: format {about.format}, and this store reads {_FORMAT}")
    if about.index != index:
        raise StateMachineError(f"snapshot in {directory} is at index {about.index}, not {index}")
    reader = _Reader(directory / "rows", about.sha256)
    return Contents(index, *map(reader.rows, _TABLES))


class _Reader:
    """The rows of a file, once through."""

    def __init__(self, file: Path, sha256: str) -> None:
        self._file = file
        self._batches = self._read(sha256)
        self._next: _Rows | None = None

    def rows(self, table: str) -> Iterator[Any]:
        """Return those of a table, which come after those of the tables before it."""
        if self._next is None:
            self._next = next(self._batches, None)
        while self._next is not None and self._next.table == table:
            yield from self._next.rows
            self._next = next(self._batches, None)
        if table == _TABLES[-1] and self._next is not None:
            raise StateMachineError(f"snapshot: {self._file} has rows of a table {self._next.table!r}")

    def _read(self, sha256: str) -> Iterator[_Rows]:
        """Read all batches; raises in the end where they are not those that were written."""
        with ThreadPoolExecutor(1) as beside:
            found = beside.submit(_checksum, self._file)
            try:
                yield from _frames(self._file)
            except (OSError, ValueError) as error:
                if found.result() == sha256:
                    raise StateMachineError(f"snapshot: {self._file} holds no rows: {error}") from error
            if found.result() != sha256:
                raise StateMachineError(f"snapshot: {self._file} does not have the checksum that `about` names")


def _frames(file: Path) -> Iterator[_Rows]:
    decoder = msgspec.msgpack.Decoder(_Rows)
    with file.open("rb", buffering=0) as stream:
        while head := stream.read(HEADER.size):
            (length,) = HEADER.unpack(head.ljust(HEADER.size, b"\0"))
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            yield decoder.decode(stream.read(length))


def _batched(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    batch: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(field) for field in row if isinstance(field, bytes))
        if len(batch) >= _ROWS_PER_FRAME or size >= _PIECE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _checksum(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise StateMachineError(f"snapshot: cannot read {file}: {error.strerror}") from error

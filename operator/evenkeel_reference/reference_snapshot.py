"""A group as snapshot files, and back.

The file `rows` holds frames of up to a thousand rows or about a MiB each. The file `about` holds the index, the format
and the checksum of `rows`. The sender deletes the files after the transfer, so they need not be durable. A separate
thread computes the checksum. A reader must not commit rows before the last one was read, when the checksum is verified.
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
_BYTES_PER_FRAME: Final = 1 << 20
_TABLES: Final = ("entries", "tokens", "barriers")


class _About(Struct):
    format: int
    index: int
    sha256: str


class _Rows(Struct, array_like=True):
    table: str
    rows: list[Any]


def write_snapshot(directory: Path, contents: Contents) -> list[str]:
    """Write the files; return their names."""
    digest, hashed = hashlib.sha256(), None
    with (directory / "rows").open("wb") as file, ThreadPoolExecutor(1) as hashing:
        for table in _TABLES:
            for batch in _batched(getattr(contents, table)):
                payload = msgspec.msgpack.encode(_Rows(table, batch))
                frame = HEADER.pack(len(payload)), payload
                file.writelines(frame)
                if hashed is not None:
                    hashed.result()  # frames that are not hashed yet stay in memory, so allow only one
                hashed = hashing.submit(_update, digest, frame)
    about = _About(_FORMAT, contents.applied, digest.hexdigest())
    (directory / "about").write_bytes(msgspec.json.encode(about))
    return ["about", "rows"]


def _update(digest: hashlib._Hash, frame: Iterable[bytes]) -> None:
    for part in frame:
        digest.update(part)


def read_snapshot(directory: Path, *, index: int) -> Contents:
    """Read the files; the rows of the tables must be read in order, and completely.

    `StateMachineError` if this is not an intact snapshot at this index. It may be raised as late as after the last row,
    so commit nothing before.
    """
    try:
        about = msgspec.json.decode((directory / "about").read_bytes(), type=_About)
    except (OSError, ValueError) as error:
        raise StateMachineError(f"snapshot in {directory}: cannot read `about`: {error}") from error
    if about.format != _FORMAT:
        raise StateMachineError(
            f"snapshot in {directory} has format {about.format}; this release reads format {_FORMAT}"
        )
    if about.index != index:
        raise StateMachineError(f"snapshot in {directory} is at index {about.index}, not {index}")
    reader = _Reader(directory / "rows", about.sha256)
    return Contents(index, *map(reader.rows, _TABLES))


class _Reader:
    """Reads the rows of a file once."""

    def __init__(self, file: Path, sha256: str) -> None:
        self._file = file
        self._batches = self._read(sha256)
        self._next: _Rows | None = None

    def rows(self, table: str) -> Iterator[Any]:
        """Yield the rows of a table; call this for the tables in order."""
        if self._next is None:
            self._next = next(self._batches, None)
        while self._next is not None and self._next.table == table:
            yield from self._next.rows
            self._next = next(self._batches, None)
        if table == _TABLES[-1] and self._next is not None:
            raise StateMachineError(f"snapshot: {self._file} has rows of an unknown table {self._next.table!r}")

    def _read(self, sha256: str) -> Iterator[_Rows]:
        """Yield all batches; raise at the end if the checksum is wrong."""
        with ThreadPoolExecutor(1) as hashing:
            checksum = hashing.submit(_checksum, self._file)
            try:
                yield from _frames(self._file)
            except (OSError, ValueError) as error:
                if checksum.result() == sha256:
                    raise StateMachineError(f"snapshot: {self._file} cannot be decoded: {error}") from error
            if checksum.result() != sha256:
                raise StateMachineError(f"snapshot: {self._file} is damaged: its checksum does not match `about`")


def _frames(file: Path) -> Iterator[_Rows]:
    decoder = msgspec.msgpack.Decoder(_Rows)
    with file.open("rb", buffering=0) as stream:
        while head := stream.read(HEADER.size):
            (length,) = HEADER.unpack(head.ljust(HEADER.size, b"\0"))
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}")
            yield decoder.decode(stream.read(length))


def _batched(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    batch: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(field) for field in row if isinstance(field, bytes))
        if len(batch) >= _ROWS_PER_FRAME or size >= _BYTES_PER_FRAME:
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

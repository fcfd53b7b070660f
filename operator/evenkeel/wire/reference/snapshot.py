"""A group as files, and back.

`rows` holds frames of up to a thousand rows or about a MiB each; `about` says at which index, in which format, and
what the checksum of `rows` is. Files and directory are synced before the snapshot counts as taken; a snapshot is
checked as a whole before the first row of it replaces anything.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct

from evenkeel.errors import FrameError, StateMachineError
from evenkeel.wire.directory import sync_directory
from evenkeel.wire.frames import HEADER, FrameReader
from evenkeel.wire.reference.state import Contents

__all__ = ["read_snapshot", "write_snapshot"]

_FORMAT: Final = 1
_ROWS_PER_FRAME: Final = 1000
_PIECE: Final = 1 << 20


class _About(Struct):
    format: int
    index: int
    sha256: str


class _Rows(Struct, array_like=True):
    table: str
    rows: list[Any]


def write_snapshot(directory: Path, contents: Contents) -> list[str]:
    """Write the files, durably; returns their names."""
    with (directory / "rows").open("wb") as file:
        for table in ("entries", "tokens", "barriers"):
            for batch in _batched(getattr(contents, table)):
                payload = msgspec.msgpack.encode(_Rows(table, batch))
                file.write(HEADER.pack(len(payload)) + payload)
        _sync(file)
    about = _About(_FORMAT, contents.applied, _checksum(directory / "rows"))
    with (directory / "about").open("wb") as file:
        file.write(msgspec.json.encode(about))
        _sync(file)
    sync_directory(directory)
    return ["about", "rows"]


def read_snapshot(directory: Path, *, index: int) -> Contents:
    """Read the files back; `StateMachineError` where they are not the snapshot at this index, whole and unharmed."""
    try:
        about = msgspec.json.decode((directory / "about").read_bytes(), type=_About)
    except (OSError, ValueError) as error:
        raise StateMachineError(f"snapshot in {directory}: cannot read `about`: {error}") from error
    if about.format != _FORMAT:
        raise StateMachineError(f"snapshot in {directory}: format {about.format}, and this store reads {_FORMAT}")
    if about.index != index:
        raise StateMachineError(f"snapshot in {directory} is at index {about.index}, not {index}")
    if _checksum(directory / "rows") != about.sha256:
        raise StateMachineError(f"snapshot in {directory}: `rows` does not have the checksum that `about` names")
    return Contents(index, *(_rows(directory / "rows", table) for table in ("entries", "tokens", "barriers")))


def _rows(file: Path, table: str) -> Iterator[Any]:
    reader, decoder = FrameReader(), msgspec.msgpack.Decoder(_Rows)
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE):
            try:
                for frame in reader.feed(piece):
                    batch = decoder.decode(frame)
                    if batch.table == table:
                        yield from batch.rows
            except (FrameError, ValueError) as error:
                raise StateMachineError(f"{file} holds no rows: {error}") from error


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


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())

"""Heads and tokens in the database: one row for each transaction, and now and then all of them anew.

A transaction that touches two hundred groups writes one row here, not two hundred: a statement costs more than what is
in it. The row says what was done to each group (`heads.Step`). Loading starts from the heads as they were last written
out and takes the steps since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from evenkeel_store.engine.database import Cursor, insert, run
from evenkeel_store.engine.group_metadata import GroupMetadata, Step
from evenkeel_store.engine.write_tokens import TokenUse

__all__ = ["Journal", "KeptGroup", "decode_kept", "encode_kept"]

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS journal (n BIGINT, steps BLOB)",
    "CREATE TABLE IF NOT EXISTS heads (g BIGINT, kept BLOB)",
)
_LONGEST: Final = 1000


class KeptGroup(Struct, array_like=True, frozen=True):
    """All that is kept of a group beside its rows."""

    metadata: GroupMetadata
    uses: list[TokenUse]


_encoder: Final = msgspec.msgpack.Encoder()
_steps: Final = msgspec.msgpack.Decoder(list[Step])
_kept: Final = msgspec.msgpack.Decoder(KeptGroup)


def encode_kept(group: KeptGroup) -> bytes:
    """Return a group as bytes."""
    return _encoder.encode(group)


def decode_kept(data: bytes) -> KeptGroup:
    """Read a group back; ValueError where these bytes are none."""
    return _kept.decode(data)


class Journal:
    """The journal's tables; used by the thread that applies."""

    def __init__(self, cursor: Cursor) -> None:
        run(cursor, *_SCHEMA)
        self._next = 1
        self._length = 0
        self._changed: set[int] = set()

    def load(self, cursor: Cursor) -> Iterator[tuple[int, KeptGroup] | Step]:
        """Yield groups as they were last written out, then what happened since."""
        for group, kept in cursor.execute("SELECT g, kept FROM heads").fetchall():
            yield group, decode_kept(kept)
        rows = cursor.execute("SELECT n, steps FROM journal ORDER BY n").fetchall()
        self._length = len(rows)
        for number, data in rows:
            self._next = number + 1
            for step in _steps.decode(data):
                self._changed.add(step.group)
                yield step

    def write(self, cursor: Cursor, steps: Sequence[Step]) -> None:
        """Note inside a transaction what it does."""
        cursor.execute("INSERT INTO journal VALUES (?, ?)", [self._next, _encoder.encode(steps)])

    def written(self, steps: Iterable[Step]) -> None:
        """The transaction is durable."""
        self._next += 1
        self._length += 1
        self._changed.update(step.group for step in steps)

    @property
    def last(self) -> int:
        """The number of the last transaction; they count on for ever."""
        return self._next - 1

    @property
    def changed(self) -> frozenset[int] | None:
        """Which groups have to be written out; None while that can wait."""
        return frozenset(self._changed) if self._length >= _LONGEST else None

    def rewrite(self, cursor: Cursor, groups: dict[int, KeptGroup | None]) -> None:
        """Write groups out inside a transaction, in place of the steps; None for those that are gone."""
        numbers = ", ".join(map(str, groups)) or "NULL"
        run(cursor, f"DELETE FROM heads WHERE g IN ({numbers})")
        kept = [(group, encode_kept(value)) for group, value in groups.items() if value is not None]
        columns = [
            pa.array([group for group, _ in kept], pa.int64()),
            pa.array([data for _, data in kept], pa.binary()),
        ]
        insert(cursor, "heads", pa.table(columns, names=["g", "kept"]))
        run(cursor, "DELETE FROM journal")
        self.write(cursor, [])

    def rewritten(self) -> None:
        """That transaction is durable."""
        self.written([])
        self._length = 1
        self._changed.clear()

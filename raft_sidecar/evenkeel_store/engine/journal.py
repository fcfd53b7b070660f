"""The journal: metadata and write tokens in the database, one row per transaction.

A transaction that touches two hundred groups writes one row here, not two hundred, because a statement costs more than
its contents. The row contains what was done to each group (`group_metadata.Step`). Loading starts from the groups'
state as it was last written out, and applies the steps since.
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
_MAX_LENGTH: Final = 1000


class KeptGroup(Struct, array_like=True, frozen=True):
    """A group's stored state without its rows."""

    metadata: GroupMetadata
    uses: list[TokenUse]


_encoder: Final = msgspec.msgpack.Encoder()
_steps: Final = msgspec.msgpack.Decoder(list[Step])
_kept: Final = msgspec.msgpack.Decoder(KeptGroup)


def encode_kept(group: KeptGroup) -> bytes:
    """Encode a group's state."""
    return _encoder.encode(group)


def decode_kept(data: bytes) -> KeptGroup:
    """Decode a group's state; ValueError if the bytes are invalid."""
    return _kept.decode(data)


class Journal:
    """The journal's tables; used by the apply thread."""

    def __init__(self, cursor: Cursor) -> None:
        run(cursor, *_SCHEMA)
        self._next = 1
        self._length = 0
        self._changed: set[int] = set()

    def load(self, cursor: Cursor) -> Iterator[tuple[int, KeptGroup] | Step]:
        """Yield the groups as they were last written out, then the steps since."""
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
        """Write the steps of a transaction, within it."""
        cursor.execute("INSERT INTO journal VALUES (?, ?)", [self._next, _encoder.encode(steps)])

    def written(self, steps: Iterable[Step]) -> None:
        """Record that the transaction of these steps is durable."""
        self._next += 1
        self._length += 1
        self._changed.update(step.group for step in steps)

    @property
    def last(self) -> int:
        """The number of the last transaction; numbers never restart."""
        return self._next - 1

    @property
    def changed(self) -> frozenset[int] | None:
        """The groups to write out; None while the journal is short."""
        return frozenset(self._changed) if self._length >= _MAX_LENGTH else None

    def rewrite(self, cursor: Cursor, groups: dict[int, KeptGroup | None]) -> None:
        """Replace the steps by the groups' state, within a transaction; None for destroyed groups."""
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
        """Record that the transaction of `rewrite` is durable."""
        self.written([])
        self._length = 1
        self._changed.clear()

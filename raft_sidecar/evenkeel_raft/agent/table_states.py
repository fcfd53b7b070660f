"""Records and tombstones of tables: which tables are ready, and which were dropped.

Both are watched at one revision. A store that sees the tombstone therefore no longer sees the record, and does not
start a replica that an older view of the partitions' keys asks for.
"""

from __future__ import annotations

from contextlib import suppress

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Event, KeyValue, Snapshot
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import TableRecord, TableState, decode
from evenkeel_raft.agent.key_mirror import KeyMirror
from evenkeel_raft.agent.partition_agent import SeenTable

__all__ = ["TableStates"]


class TableStates:
    """All tables of the StoreCluster as last seen."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._known = KeyMirror()
        self._seen: dict[str, tuple[int, SeenTable | None]] = {}

    def load(self, snapshot: Snapshot) -> None:
        """Replace all records and tombstones by a listing."""
        self._known.update_all(snapshot)

    def apply(self, event: Event) -> str:
        """Apply one event; return its table."""
        self._known.update(event.key, event.kv, at=event.mod_revision)
        return event.key.rpartition("/")[2]

    def read(self, table: str, record: KeyValue | None, *, at: int) -> None:
        """Record the table's record as a read found it, perhaps ahead of the watch."""
        self._known.update(self._keys.table(table), record, at=at)

    def ready(self, table: str) -> SeenTable | None:
        """Return what transactions compare; None unless the table is ready.

        Raises MalformedRecordError for a malformed record. The record is decoded once per version.
        """
        kv = self._known.get(self._keys.table(table))
        if kv is None:
            self._seen.pop(table, None)
            return None
        cached = self._seen.get(table)
        if cached is None or cached[0] != kv.mod_revision:
            cached = self._seen[table] = (kv.mod_revision, _decode(kv))
        return cached[1]

    def limits(self) -> dict[str, int]:
        """Return the copy limits of tables that have one; malformed records are ignored."""
        prefix, found = self._keys.table(""), {}
        for table in [kv.key.removeprefix(prefix) for kv in self._known if kv.key.startswith(prefix)]:
            with suppress(MalformedRecordError):
                seen = self.ready(table)
                if seen is not None and seen.bytes_per_second:
                    found[table] = seen.bytes_per_second
        return found

    def tombstone(self, table: str) -> KeyValue | None:
        """Return the tombstone, which exists once the table has been dropped."""
        return self._known.get(self._keys.tombstone(table))

    def dropped(self) -> list[str]:
        """Return all tables with a tombstone."""
        prefix = self._keys.tombstone("")
        return [kv.key.removeprefix(prefix) for kv in self._known if kv.key.startswith(prefix)]

    @property
    def empty(self) -> bool:
        """Whether there is neither a table nor a tombstone."""
        return not any(self._known)


def _decode(kv: KeyValue) -> SeenTable | None:
    record = decode(TableRecord, kv.value, key=kv.key)
    if record.state is not TableState.READY:
        return None
    return SeenTable(kv.mod_revision, record.retarget, record.bytes_per_second)

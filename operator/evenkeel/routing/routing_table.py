"""The routes: what is known of tables, partitions and stores.

`Routes` is the interface for readers. `RoutingTable` implements it from the metastore's keys, which it receives one by
one in any order. A table can be looked up by name or by key (`<name>.<uid>`). A key identifies one table, and not a
later one with the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec
from pydantic import ValidationError

from evenkeel.errors import MalformedRecordError
from evenkeel.model.table import TableSpec
from evenkeel.protocol.keys import Keys, table_name
from evenkeel.protocol.records import Leader, Stable, StoreRecord, TableRecord, TableState, decode
from evenkeel.rows.row_schema import RowSchema, schema_of_table

__all__ = ["KnownTable", "Routes", "RoutingTable"]


class KnownTable(msgspec.Struct, frozen=True, kw_only=True):
    """What reads and writes need to know of a table."""

    key: str
    schema: RowSchema
    changes: bool = False
    retention: float = 86400.0
    """Seconds for which changes are retained."""
    state: TableState = TableState.READY

    @property
    def name(self) -> str:
        """The name of the Table resource."""
        return table_name(self.key)


class Routes(Protocol):
    """Where tables, partitions and stores are, as far as this process knows."""

    def table(self, named: str) -> KnownTable | None:
        """Return a table by name or key; None if it is unknown."""
        ...

    def tables(self) -> Iterable[KnownTable]:
        """Return all tables."""
        ...

    def dropped(self, table: str) -> bool:
        """Return whether a table, by key, was deleted and its data is retained for an undelete."""
        ...

    def leader(self, table: str, partition: int) -> str:
        """Return the store that leads a partition of a table, by key; empty if it is unknown."""
        ...

    def replicas(self, table: str, partition: int) -> tuple[str, ...]:
        """Return the stores with a replica of a partition."""
        ...

    def address(self, store: str) -> str:
        """Return the address of a store for clients; empty if it is unknown."""
        ...

    def stores(self) -> dict[str, str]:
        """Return all known addresses by store."""
        ...


class RoutingTable:
    """`Routes` from the metastore's keys."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._tables: dict[str, KnownTable] = {}
        self._dropped: set[str] = set()
        self._leaders: dict[tuple[str, int], Leader] = {}
        self._replicas: dict[tuple[str, int], tuple[str, ...]] = {}
        self._stores: dict[str, str] = {}

    def prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of the keys to pass to `put` and `remove`."""
        keys = self.keys
        return f"{keys.root}tables/", keys.stores(), keys.all_leaders(), keys.all_stable()

    def put(self, key: str, value: bytes) -> str:
        """Add a key; return its table or "". `MalformedRecordError` if the key or value is invalid."""
        kind, _, rest = key.removeprefix(self.keys.root).partition("/")
        if kind == "tables":
            self._put_table(rest, decode(TableRecord, value, key=key), key)
        elif kind == "stores":
            self._stores[rest] = decode(StoreRecord, value, key=key).flight
            return ""
        elif kind == "leaders":
            self._leaders[_place(rest, key)] = decode(Leader, value, key=key)
        else:
            peers = decode(Stable, value, key=key).peers
            self._replicas[_place(rest, key)] = tuple(peer.store for peer in peers)
        return rest.partition("/")[0]

    def remove(self, key: str) -> str:
        """Remove a key; return its table or ""."""
        kind, _, rest = key.removeprefix(self.keys.root).partition("/")
        if kind == "tables":
            self._tables.pop(rest, None)
            self._dropped.discard(rest)
        elif kind == "stores":
            # The store's registration expired, but the store may still answer: keep its address.
            return ""
        elif kind == "leaders":
            self._leaders.pop(_place(rest, key), None)
        else:
            self._replicas.pop(_place(rest, key), None)
        return rest.partition("/")[0]

    def _put_table(self, table: str, record: TableRecord, key: str) -> None:
        if record.dropped is not None:
            self._tables.pop(table, None)
            self._dropped.add(table)
            return
        self._tables[table] = _known_table(table, record, key)
        self._dropped.discard(table)

    # Routes

    def table(self, named: str) -> KnownTable | None:
        """Return a table by name or key; None if it is unknown."""
        if "." in named:
            return self._tables.get(named)
        return next((table for table in self.tables() if table.name == named), None)

    def tables(self) -> Iterable[KnownTable]:
        """Return all tables."""
        return list(self._tables.values())

    def dropped(self, table: str) -> bool:
        """Return whether a table, by key, was deleted and its data is retained for an undelete."""
        return table in self._dropped

    def leader(self, table: str, partition: int) -> str:
        """Return the store that leads a partition of a table, by key; empty if it is unknown."""
        known = self._leaders.get((table, partition))
        return "" if known is None else known.store

    def replicas(self, table: str, partition: int) -> tuple[str, ...]:
        """Return the stores with a replica of a partition."""
        return self._replicas.get((table, partition), ())

    def address(self, store: str) -> str:
        """Return the address of a store for clients; empty if it is unknown."""
        return self._stores.get(store, "")

    def stores(self) -> dict[str, str]:
        """Return all known addresses by store."""
        return {store: address for store, address in list(self._stores.items()) if address}


def _place(rest: str, key: str) -> tuple[str, int]:
    table, _, partition = rest.partition("/")
    if not partition.isdecimal():
        raise MalformedRecordError(f"metastore key {key!r} names no partition; delete it if nothing uses it")
    return table, int(partition)


def _known_table(table: str, record: TableRecord, key: str) -> KnownTable:
    try:
        spec = TableSpec.model_validate_json(bytes(record.spec))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise MalformedRecordError(f"metastore key {key!r}: spec.{where}: {first['msg']}") from error
    changes = spec.changes
    return KnownTable(
        key=table,
        schema=schema_of_table(spec),
        changes=changes is not None and changes.enabled,
        retention=float(changes.retention.seconds) if changes is not None else 0.0,
        state=record.state,
    )

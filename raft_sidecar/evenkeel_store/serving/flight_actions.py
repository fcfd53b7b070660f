"""DoAction: lookups, pins, hashes, rebuilds, status and routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import duckdb
import msgspec
import pyarrow as pa
from pyarrow import flight

from evenkeel.errors import RequestError, UnknownColumnError
from evenkeel.routing.routing_table import KnownTable
from evenkeel.rows.conform import conform_keys
from evenkeel.rows.row_schema import RowSchema, arrow_schema
from evenkeel.wire.flight import (
    ACTIONS,
    GroupStatus,
    HashRequest,
    HashResult,
    LookupRequest,
    PartitionRoute,
    PinRequest,
    PinResult,
    RebuildRequest,
    RoutesRequest,
    RoutesResult,
    StatusRequest,
    StatusResult,
    TableRoutes,
    UnpinRequest,
    decode,
    encode,
    unpack,
)
from evenkeel_store.engine.group_state import Group
from evenkeel_store.serving.loop_bridge import LoopBridge
from evenkeel_store.serving.request_sql import lookup_query
from evenkeel_store.serving.store_service import StoreService

__all__ = ["FlightActions"]

_MAX_KEYS: Final = 100_000


class FlightActions:
    """Answers DoAction calls."""

    def __init__(self, service: StoreService, bridge: LoopBridge) -> None:
        self._service = service
        self._bridge = bridge
        self._actions: dict[str, Callable[[bytes], bytes]] = {
            "lookup": self._lookup,
            "pin": self._pin,
            "unpin": self._unpin,
            "hash": self._hash,
            "rebuild": self._rebuild,
            "status": self._status,
            "routes": self._routes,
        }

    def act(self, kind: str, body: bytes) -> Iterator[flight.Result]:
        """Run an action."""
        action = self._actions.get(kind)
        if action is None:
            raise RequestError(f"no action is called {kind}; there are: {', '.join(ACTIONS)}")
        return iter([flight.Result(action(body))])

    # Lookups

    def _lookup(self, body: bytes) -> bytes:
        request, stream = unpack(LookupRequest, body)
        group = self._service.find(request.table, request.partition or 0)
        held = self._bridge.call(self._service.await_fresh(group, request))
        try:
            found = self._find_rows(group, request, _keys(stream), None if held is None else held[1])
        except duckdb.Error as error:
            self._bridge.begin(self._service.report(group, error))
            raise
        finally:
            if held is not None:
                group.release(held)
        return _stream(found)

    def _find_rows(self, group: Group, request: LookupRequest, keys: pa.Table, at: int | None) -> pa.Table:
        schema = group.metadata.schema
        assert schema is not None, "await_fresh has checked that there are columns"
        names = _names(request, schema)
        batches = [conform_keys(batch, schema) for batch in keys.combine_chunks().to_batches()]
        places = [f"c{schema.names.index(name)}" for name in schema.primary_key]
        shape = arrow_schema(schema)
        wanted = pa.schema([shape.field(shape.get_field_index(name)) for name in names])
        if not batches:
            return wanted.empty_table()
        requested = pa.Table.from_batches(batches).rename_columns(places)
        _, found = self._service.state_machine.rows.read(
            group, lambda layout: lookup_query(names, layout, requested, at=at, folded=group.is_folded)
        )
        return pa.Table.from_arrays(found.columns, schema=wanted)

    # Barriers

    def _pin(self, body: bytes) -> bytes:
        request = decode(PinRequest, body)
        group = self._service.find(request.table, request.partition)
        pinned, created = self._bridge.call(self._service.pin(group, request.name, request.seconds))
        expires = self._service.time_of_day(group, pinned.expires)
        return encode(PinResult(index=pinned.index, expires=expires, created=created))

    def _unpin(self, body: bytes) -> bytes:
        request = decode(UnpinRequest, body)
        self._bridge.call(self._service.unpin(self._service.find(request.table, request.partition), request.name))
        return b""

    def _hash(self, body: bytes) -> bytes:
        request = decode(HashRequest, body)
        group = self._service.find(request.table, request.partition)
        index, value = self._bridge.call(self._service.take_hash(group))
        return encode(HashResult(index=index, hash=value))

    def _rebuild(self, body: bytes) -> bytes:
        request = decode(RebuildRequest, body)
        group = self._service.find(request.table, request.partition)
        self._bridge.call(self._service.rebuild(group, request.index, request.hash))
        return b""

    # Status and routes

    def _status(self, body: bytes) -> bytes:
        request = decode(StatusRequest, body)
        state_machine = self._service.state_machine
        known = self._service.routes.table(request.table) if request.table else None
        groups = state_machine.groups.of_table(known.key if known is not None else request.table)
        if request.partition is not None:
            groups = [group for group in groups if group.metadata.partition == request.partition]
        return encode(
            StatusResult(
                store=self._service.store,
                bytes=state_machine.engine.database.bytes,
                full=state_machine.directory.full(),
                groups=tuple(
                    map(self._status_of, sorted(groups, key=lambda g: (g.metadata.table, g.metadata.partition)))
                ),
            )
        )

    def _status_of(self, group: Group) -> GroupStatus:
        metadata, role = group.metadata, self._service.state_machine.groups.role(group.number)
        return GroupStatus(
            table=metadata.table,
            partition=metadata.partition,
            group=group.number,
            replica=metadata.replica,
            applied=metadata.applied,
            leader=role.leader,
            term=role.term,
            columns=metadata.schema.version if metadata.schema is not None else 0,
            rows=group.estimated_rows,
            unfolded=group.unfolded,
            first_change=metadata.forgotten + 1 if metadata.changes else None,
            log_time=metadata.time,
            pins={name: pin.index for name, pin in metadata.pins.items()},
            hashes=dict(group.hashes),
            damage=metadata.damage,
            differs=group.doubt,
        )

    def _routes(self, body: bytes) -> bytes:
        request = decode(RoutesRequest, body)
        routes = self._service.routes
        known = routes.table(request.table) if request.table else None
        tables = ([known] if known is not None else []) if request.table else routes.tables()
        return encode(RoutesResult(tables=tuple(map(self._table_routes, tables)), stores=routes.stores()))

    def _table_routes(self, table: KnownTable) -> TableRoutes:
        routes = self._service.routes
        return TableRoutes(
            name=table.name,
            key=table.key,
            schema=msgspec.Raw(msgspec.json.encode(table.schema)),
            partitions=tuple(
                PartitionRoute(leader=routes.leader(table.key, place), replicas=routes.replicas(table.key, place))
                for place in range(table.schema.partitions)
            ),
        )


def _names(request: LookupRequest, schema: RowSchema) -> tuple[str, ...]:
    names = schema.names if request.columns is None else request.columns
    for name in names:
        if schema.column(name) is None:
            raise UnknownColumnError(f"the table has no column {name}; there are: {', '.join(schema.names)}")
    if not names:
        raise RequestError("columns: name at least one")
    return names


def _keys(stream: memoryview) -> pa.Table:
    try:
        keys = pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"the keys to look up are not an Arrow stream: {error}") from None
    if keys.num_rows > _MAX_KEYS:
        raise RequestError(f"{keys.num_rows} keys in one lookup; send at most {_MAX_KEYS}")
    return keys


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    made: bytes = sink.getvalue().to_pybytes()
    return made

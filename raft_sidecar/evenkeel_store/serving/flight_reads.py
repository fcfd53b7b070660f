"""DoGet, GetFlightInfo, GetSchema and ListFlights: rows, and where they are."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import msgspec
import pyarrow as pa
from pyarrow import flight

from evenkeel.errors import RequestError, StoreError, UnavailableError, UnknownTableError
from evenkeel.routing.routing_table import KnownTable
from evenkeel.rows.row_schema import arrow_schema
from evenkeel.wire.flight import ReadRequest, ReadStamp, decode, encode
from evenkeel_store.engine.group_state import Group
from evenkeel_store.serving.loop_bridge import LoopBridge, flight_error
from evenkeel_store.serving.request_sql import answer_schema
from evenkeel_store.serving.scans import Scanner, ScanResult
from evenkeel_store.serving.store_service import StoreService

__all__ = ["FlightReads", "request_of"]


def request_of(descriptor: flight.FlightDescriptor) -> ReadRequest:
    """Return the request in a descriptor; a path is a table, or a table and one of its partitions."""
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return decode(ReadRequest, descriptor.command)
    parts = [part.decode(errors="replace") for part in descriptor.path or ()]
    match parts:
        case [table]:
            return ReadRequest(table=table)
        case [table, partition] if partition.isdecimal():
            return ReadRequest(table=table, partition=int(partition))
    raise RequestError(f"a path is <table> or <table>/<partition>; got {'/'.join(parts)!r}")


class FlightReads:
    """Answers read calls."""

    def __init__(self, service: StoreService, bridge: LoopBridge, scanner: Scanner) -> None:
        self._service = service
        self._bridge = bridge
        self._scanner = scanner

    def get(self, ticket: bytes) -> flight.FlightDataStream:
        """Return a stream of the requested rows."""
        request = decode(ReadRequest, ticket)
        group = self._service.find(request.table, self._partition(request))
        result = self._begin(group, request)
        return flight.GeneratorStream(result.schema, self._stream(group, result))

    def _begin(self, group: Group, request: ReadRequest) -> ScanResult:
        held = self._bridge.call(self._service.await_fresh(group, request))
        try:
            return self._scanner.scan(group, request, held=held)
        except BaseException as error:
            if held is not None:
                group.release(held)
            self._report(group, error)
            if not self._service.is_open(group):
                raise self._service.gone_error(group) from None
            raise

    def _stream(self, group: Group, result: ScanResult) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        stamp = encode(ReadStamp(index=result.index))
        # A reader of changes needs the index even if there are no changes.
        yield pa.RecordBatch.from_arrays([[]] * len(result.schema), schema=result.schema), stamp
        try:
            for batch in result:
                if not self._service.is_open(group):
                    raise self._service.gone_error(group)
                self._service.state_machine.counters["read_rows"] += batch.num_rows
                yield batch, stamp
        except (StoreError, duckdb.Error) as error:
            self._report(group, error)
            if not self._service.is_open(group):
                error = self._service.gone_error(group)
            elif isinstance(error, duckdb.Error):
                error = UnavailableError(f"the rows cannot be read on this store: {error}")
            raise flight_error(error) from None

    def _report(self, group: Group, error: BaseException) -> None:
        if isinstance(error, duckdb.Error):
            self._bridge.begin(self._service.report(group, error))

    # Tables and partitions

    def info(self, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """Return where the requested rows are: for each partition a ticket and addresses."""
        request = request_of(descriptor)
        table = self._table(request.table)
        wanted = range(table.schema.partitions) if request.partition is None else [request.partition]
        if request.partition is not None and request.partition >= table.schema.partitions:
            raise UnknownTableError(f"table {table.name} has the partitions 0 to {table.schema.partitions - 1}")
        endpoints = [self._endpoint(request, table, partition) for partition in wanted]
        schema = answer_schema(request, table.schema)
        return flight.FlightInfo(schema, descriptor, endpoints, self._estimate(table, len(endpoints)), -1)

    def schema(self, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """Return the columns of the answer to a descriptor."""
        request = request_of(descriptor)
        return flight.SchemaResult(answer_schema(request, self._table(request.table).schema))

    def list(self) -> Iterator[flight.FlightInfo]:
        """Yield every table, without its partitions."""
        for table in self._service.routes.tables():
            descriptor = flight.FlightDescriptor.for_path(table.name)
            yield flight.FlightInfo(arrow_schema(table.schema), descriptor, [], -1, -1)

    def _endpoint(self, request: ReadRequest, table: KnownTable, partition: int) -> flight.FlightEndpoint:
        exact = msgspec.structs.replace(request, table=table.key, partition=partition)
        routes = self._service.routes
        stores = [
            store for store in (routes.leader(table.key, partition), *routes.replicas(table.key, partition)) if store
        ]
        anywhere = request.pin or request.at_least is not None or request.max_age is not None
        addresses = [routes.address(store) for store in dict.fromkeys(stores if anywhere else stores[:1])]
        return flight.FlightEndpoint(encode(exact), [address for address in addresses if address])

    def _table(self, named: str) -> KnownTable:
        known = self._service.routes.table(named)
        if known is None:
            raise UnknownTableError(f"no table is called {named}")
        return known

    def _partition(self, request: ReadRequest) -> int:
        if request.partition is not None:
            return request.partition
        known = self._service.routes.table(request.table)
        if known is not None and known.schema.partitions > 1:
            count = known.schema.partitions
            raise RequestError(f"partition: table {known.name} has {count}; name one, or get all with GetFlightInfo")
        return 0

    def _estimate(self, table: KnownTable, partitions: int) -> int:
        """Estimate the rows from the partitions on this store; -1 if it has none."""
        counts = [
            group.estimated_rows
            for group in self._service.state_machine.groups.of_table(table.key)
            if group.metadata.schema is not None
        ]
        return -1 if not counts else sum(counts) * partitions // len(counts)

"""One table: writes, reads, lookups, changes and pins."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import flight

from evenkeel.client.filters import Filter, filter_of
from evenkeel.client.retries import RETRYABLE, Retrier, RetryingCall, StoreRequest, positive_seconds
from evenkeel.client.route_cache import Route
from evenkeel.client.row_input import key_batches, row_batches
from evenkeel.client.row_streams import RowStream
from evenkeel.client.table_writer import Op, TableWriter, WriteResult, send_with_sequences
from evenkeel.client.verification import Verified, rebuild_wrong, verify_partition
from evenkeel.errors import (
    RequestError,
    RetentionError,
    StoreError,
    TableDroppedError,
    UnavailableError,
    UnknownColumnError,
)
from evenkeel.rows.partitioning import partitions_of
from evenkeel.rows.row_schema import RowSchema, arrow_schema
from evenkeel.wire.flight import (
    Aggregate,
    LookupRequest,
    PinRequest,
    PinResult,
    PutRequest,
    ReadRequest,
    ReadStamp,
    RoutesRequest,
    UnpinRequest,
    decode,
    encode,
    pack,
)

__all__ = ["Changes", "TableClient"]

T = TypeVar("T")
U = TypeVar("U")
_LOOKUP_KEYS: Final = 50_000
_ALLOWED: Final[dict[type, str]] = {int: "an index of its log", str: "the name of a pin"}


class Changes(Struct, frozen=True):
    """Changes, and the position to continue from."""

    rows: pa.Table
    position: dict[int, int]
    """By partition, the log index up to which changes were read; pass it to `changes` to continue."""


class TableClient:
    """A table by name; all methods are thread-safe."""

    def __init__(self, name: str, retrier: Retrier, pool: ThreadPoolExecutor) -> None:
        self.name = name
        self._retrier = retrier
        self._pool = pool
        self._writer = TableWriter(f"client-{uuid.uuid4().hex[:16]}", pool)
        self._seconds: float | None = None

    def within(self, seconds: float) -> TableClient:
        """Return the same table with another timeout for each call: `orders.within(2).get([1])`."""
        made = copy.copy(self)
        made._seconds = positive_seconds("within", seconds)
        return made

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return arrow_schema(self.row_schema)

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.row_schema.partitions

    @property
    def row_schema(self) -> RowSchema:
        """Columns, keys and number of partitions, as stores know them now; columns may have been added."""
        return self._begin().route(self.name, refresh=True).schema

    def _begin(self) -> RetryingCall:
        return self._retrier.begin(self._seconds)

    def _do(self, work: Callable[[RetryingCall, Route], T]) -> T:
        """Do something with the table; again if it was replaced by a table of the same name, or has new columns."""
        call = self._begin()
        route = call.route(self.name)
        while True:
            try:
                return work(call, route)
            except TableDroppedError as error:
                known = self._current_route(call, error)
                if known.key == route.key:
                    raise
                route = known
            except UnknownColumnError:
                # The column may have been added after the schema was fetched.
                known = call.route(self.name, refresh=True)
                if known.schema == route.schema:
                    raise
                route = known
            except RuntimeError:
                # Closing the client shuts down its threads.
                self._retrier.check_open()
                raise

    def _current_route(self, call: RetryingCall, error: TableDroppedError) -> Route:
        try:
            return call.route(self.name, refresh=True)
        except StoreError:
            raise error from None

    # Writing

    def upsert(self, rows: Any) -> WriteResult:
        """Write whole rows (Arrow, pandas or dicts); each replaces the row with its key."""
        return self._write("upsert", rows)

    def append(self, rows: Any) -> WriteResult:
        """Add rows to a table without primary key."""
        return self._write("append", rows)

    def _write(self, op: Op, rows: Any) -> WriteResult:
        given = rows.read_all() if isinstance(rows, pa.RecordBatchReader) else rows  # a reader can be read only once

        def write(call: RetryingCall, route: Route) -> WriteResult:
            return self._writer.write(call, route, op, row_batches(given, route.schema))

        return self._do(write)

    def delete(self, keys: Any) -> WriteResult:
        """Delete rows by primary key: dicts, Arrow, or plain values if the key has one column."""

        def write(call: RetryingCall, route: Route) -> WriteResult:
            return self._writer.write(call, route, "delete", key_batches(keys, route.schema))

        return self._do(write)

    def put(self, partition: int, batches: Iterable[tuple[int, pa.RecordBatch]], *, op: Op, writer: str) -> int:
        """Write batches of one partition with write tokens of the caller; return the newest log index among them.

        The batches have the table's schema, and each has a sequence, from 1 on. A repeated token writes nothing, from
        any client; a store remembers the last 1,024 tokens of a writer. The order of the batches is not guaranteed.
        """
        call = self._begin()
        route = call.route(self.name)
        request = PutRequest(table=route.key, partition=partition, op=op, writer=writer)
        return send_with_sequences(call, route, request, batches)

    # Reading

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | list[Any] | None = None,  # noqa: A002 - the usual name
        *,
        limit: int | None = None,
        max_age: float | None = None,
        at_least: Mapping[int, int] | None = None,
        pins: Mapping[int, str] | None = None,
    ) -> pa.Table:
        """Read current rows, or from any replica: at most `max_age` seconds old, from a log index on, or at pins."""
        names, condition = column_names(columns), filter_of(filter)

        def ask(route: Route, partition: int) -> ReadRequest:
            return ReadRequest(
                table=route.key,
                partition=partition,
                columns=names,
                filter=condition,
                limit=limit,
                max_age=max_age,
                at_least=None if at_least is None else at_least.get(partition),
                pin="" if pins is None else pins[partition],
            )

        def read(call: RetryingCall, route: Route) -> list[tuple[pa.Table, int]]:
            _check_by_partition("at_least", at_least, route, int)
            _check_by_partition("pins", pins, route, str, all_partitions=True)
            return self._read_all(ask, call, route)

        found = pa.concat_tables([rows for rows, _ in self._do(read)])
        return found if limit is None else found.slice(0, limit)

    def stream(
        self,
        partition: int,
        columns: Sequence[str] | None = None,
        filter: Filter | list[Any] | None = None,  # noqa: A002
        *,
        limit: int | None = None,
        at_least: int | None = None,
        pin: str = "",
    ) -> RowStream:
        """Stream the rows of one partition; if the stream fails, the caller must read it again."""
        call = self._begin()
        route = call.route(self.name)
        request = ReadRequest(
            table=route.key,
            partition=partition,
            columns=column_names(columns),
            filter=filter_of(filter),
            limit=limit,
            at_least=at_least,
            pin=pin,
        )
        ticket = flight.Ticket(encode(request))

        def send(client: flight.FlightClient, options: flight.FlightCallOptions) -> RowStream:
            # The stream has no deadline, so this request detects a store that hangs.
            list(client.do_action(flight.Action("routes", encode(RoutesRequest(table=self.name))), options))
            return RowStream(client.do_get(ticket, self._retrier.no_timeout))

        return _at_allowed_replica(call, request)(route, partition, send)

    def count(self, filter: Filter | list[Any] | None = None) -> int:  # noqa: A002
        """Count rows on the stores."""
        aggregates, condition = (Aggregate(function="count", name="rows"),), filter_of(filter)

        def ask(route: Route, partition: int) -> ReadRequest:
            return ReadRequest(table=route.key, partition=partition, filter=condition, aggregates=aggregates)

        return sum(int(rows.column("rows")[0].as_py()) for rows, _ in self._do(partial(self._read_all, ask)))

    def get(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows with these primary keys; missing keys are ignored."""
        names = column_names(columns)

        def lookup(call: RetryingCall, route: Route) -> pa.Table:
            asked = list(_keys_by_partition(key_batches(keys, route.schema), route.schema))
            found = self._in_parallel(call, lambda item: _lookup(call, route, *item, names), asked)
            return pa.concat_tables(found) if found else _empty(route.schema, names)

        return self._do(lookup)

    def changes(self, from_: Mapping[int, int] | None = None) -> Changes:
        """Read the changes of each partition after these log indexes; by default from the oldest retained change.

        If the changes after an index are no longer retained, `RetentionError.first` is the first retained index. One
        call returns up to about 262,144 changes of each partition: call it until there are none.
        """
        given = {} if from_ is None else from_

        def read(call: RetryingCall, route: Route) -> Changes:
            _check_by_partition("from_", given, route, int)
            found = self._for_each_partition(call, route, lambda partition: _changed(call, route, partition, given))
            return Changes(pa.concat_tables([rows for rows, _ in found]), {p: at for p, (_, at) in enumerate(found)})

        return self._do(read)

    @contextmanager
    def pinned(self, *, seconds: float = 600.0) -> Iterator[dict[int, str]]:
        """Keep the current rows of all partitions readable: `with table.pinned() as pins: table.scan(pins=pins)`."""
        name = f"client-{uuid.uuid4().hex[:16]}"
        try:
            yield dict.fromkeys(self.pin(name, seconds=seconds), name)
        finally:
            # Pins also expire, and an error here must not hide an earlier one.
            with suppress(*RETRYABLE, TableDroppedError):
                self.unpin(name)

    def pin(self, name: str, *, seconds: float, partitions: Iterable[int] | None = None) -> dict[int, PinResult]:
        """Keep the current rows of partitions readable under a name; if the pin exists, extend it."""
        only = None if partitions is None else list(partitions)

        def pin(call: RetryingCall, route: Route) -> dict[int, PinResult]:
            pinned = list(range(len(route.partitions))) if only is None else only
            one = partial(_pin, call, route, name=name, seconds=seconds)
            return dict(zip(pinned, self._in_parallel(call, one, pinned), strict=True))

        return self._do(pin)

    def unpin(self, name: str) -> None:
        """Delete the pins of a name; succeeds if there are none."""
        self._do(lambda call, route: self._for_each_partition(call, route, partial(_unpin, call, route, name=name)))

    def _read_all(
        self, ask: Callable[[Route, int], ReadRequest], call: RetryingCall, route: Route
    ) -> list[tuple[pa.Table, int]]:
        return self._for_each_partition(call, route, lambda partition: _read(call, route, ask(route, partition)))

    def _for_each_partition(self, call: RetryingCall, route: Route, work: Callable[[int], T]) -> list[T]:
        return self._in_parallel(call, work, range(len(route.partitions)))

    def _in_parallel(self, call: RetryingCall, work: Callable[[U], T], items: Iterable[U]) -> list[T]:
        def do(item: U) -> T:
            done = work(item)
            call.extend_deadline()
            return done

        futures = [self._pool.submit(do, item) for item in items]
        try:
            return [call.wait(future) for future in futures]
        except TimeoutError:
            raise UnavailableError(f"not all partitions answered within {call.timeout:g} s; retry") from None
        finally:
            for future in futures:
                future.cancel()

    def verify(self) -> list[Verified]:
        """Compare the replicas of every partition; stores that differ also report it in their metrics."""
        return self._do(self._verify)

    def _verify(self, call: RetryingCall, route: Route) -> list[Verified]:
        return self._for_each_partition(call, route, partial(verify_partition, call, self._retrier.routes, route))

    def heal(self) -> list[Verified]:
        """Compare the replicas of every partition, and rebuild those that differ from the majority."""

        def heal(call: RetryingCall, route: Route) -> list[Verified]:
            found = self._verify(call, route)
            for one in found:
                if one.wrong:
                    rebuild_wrong(call, self._retrier.routes, route, one)
                    # Stores notice the request with the next log entry, which this adds.
                    verify_partition(call, self._retrier.routes, route, one.partition)
            return found

        return self._do(heal)

    def wait_until_readable(self, *, seconds: float = 30.0) -> None:
        """Wait until every partition has a leader that answers."""
        self.within(seconds).count()


def column_names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return columns in the form that is sent."""
    if isinstance(columns, str):
        raise RequestError(f"columns: got {columns!r}; allowed: a list of names, like [{columns!r}]")
    return None if columns is None else tuple(columns)


def _check_by_partition(
    field: str, given: Mapping[int, Any] | None, route: Route, kind: type, *, all_partitions: bool = False
) -> None:
    """Reject a mapping with invalid partitions or values, which would otherwise be ignored silently."""
    if given is None:
        return
    count = len(route.partitions)
    if not isinstance(given, Mapping):
        raise RequestError(f"{field}: got {given!r}; allowed: a dict by partition, 0 to {count - 1}")
    for partition, value in given.items():
        if type(partition) is not int or not 0 <= partition < count:
            raise RequestError(
                f"{field}: got partition {partition!r}; allowed: 0 to {count - 1}, of table {route.name}"
            )
        if not isinstance(value, kind) or (not value and kind is str):
            raise RequestError(f"{field}: got {value!r} for partition {partition}; allowed: {_ALLOWED[kind]}")
    missing = next((partition for partition in range(count) if all_partitions and partition not in given), None)
    if missing is not None:
        raise RequestError(f"{field}: got none for partition {missing}; allowed: one for each, as `pinned` gives them")


def _at_allowed_replica(call: RetryingCall, request: ReadRequest) -> Callable[[Route, int, StoreRequest[T]], T]:
    relaxed = request.max_age is not None or request.at_least is not None or request.pin
    return call.at_any_replica if relaxed else call.at_leader


def _read(call: RetryingCall, route: Route, request: ReadRequest) -> tuple[pa.Table, int]:
    """Read the rows of one partition, and the log index at which they were read."""
    ticket = flight.Ticket(encode(request))

    def send(client: flight.FlightClient, options: flight.FlightCallOptions) -> tuple[pa.Table, int]:
        reader = client.do_get(ticket, options)
        batches, index = [], 0
        for chunk in reader:
            batches.append(chunk.data)
            if chunk.app_metadata is not None:
                index = decode(ReadStamp, chunk.app_metadata.to_pybytes()).index
        return pa.Table.from_batches(batches, schema=reader.schema), index

    assert request.partition is not None
    return _at_allowed_replica(call, request)(route, request.partition, send)


def _changed(call: RetryingCall, route: Route, partition: int, given: Mapping[int, int]) -> tuple[pa.Table, int]:
    request = ReadRequest(table=route.key, partition=partition, changes_after=given.get(partition, 0))
    try:
        return _read(call, route, request)
    except RetentionError as error:
        if partition in given:
            raise
        return _read(call, route, msgspec.structs.replace(request, changes_after=max(0, error.first - 1)))


def _pin(call: RetryingCall, route: Route, partition: int, *, name: str, seconds: float) -> PinResult:
    body = encode(PinRequest(table=route.key, partition=partition, name=name, seconds=seconds))

    def send(client: flight.FlightClient, options: flight.FlightCallOptions) -> PinResult:
        [result] = client.do_action(flight.Action("pin", body), options)
        return decode(PinResult, result.body.to_pybytes())

    return call.at_leader(route, partition, send)


def _unpin(call: RetryingCall, route: Route, partition: int, *, name: str) -> None:
    body = encode(UnpinRequest(table=route.key, partition=partition, name=name))

    def send(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        list(client.do_action(flight.Action("unpin", body), options))

    call.at_leader(route, partition, send)


def _keys_by_partition(batches: Iterable[pa.RecordBatch], schema: RowSchema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split keys by partition, and into batches for one lookup each."""
    for batch in batches:
        partitions = partitions_of(batch, schema)
        for partition in np.unique(partitions):
            own = batch.filter(pa.array(partitions == partition))
            for start in range(0, own.num_rows, _LOOKUP_KEYS):
                yield int(partition), own.slice(start, _LOOKUP_KEYS)


def _lookup(
    call: RetryingCall, route: Route, partition: int, keys: pa.RecordBatch, columns: tuple[str, ...] | None
) -> pa.Table:
    body = pack(LookupRequest(table=route.key, partition=partition, columns=columns), _stream([keys]))

    def send(client: flight.FlightClient, options: flight.FlightCallOptions) -> pa.Table:
        [result] = client.do_action(flight.Action("lookup", body), options)
        return pa.ipc.open_stream(result.body).read_all()

    return call.at_leader(route, partition, send)


def _empty(schema: RowSchema, names: tuple[str, ...] | None) -> pa.Table:
    unknown = [name for name in names or () if schema.column(name) is None]
    if unknown:
        raise UnknownColumnError(f"the table has no column {unknown[0]}; there are: {', '.join(schema.names)}")
    return arrow_schema(schema).empty_table().select(list(schema.names if names is None else names))


def _stream(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data

"""One table: written, read, looked up, followed."""

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
from evenkeel.client.retries import PASSING, Attempts, Call, Trying, positive_seconds
from evenkeel.client.route_cache import Route
from evenkeel.client.row_input import key_batches, row_batches
from evenkeel.client.row_streams import RowStream
from evenkeel.client.verification import Verified, rebuild_wrong, verify_partition
from evenkeel.client.writes import Op, Writer, Written, send_stamped
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
_KEYS_AT_ONCE: Final = 50_000
_MEANT: Final[dict[type, str]] = {int: "an index of its log", str: "the name of a pin"}


class Changes(Struct, frozen=True):
    """What changed, and where to go on from."""

    rows: pa.Table
    position: dict[int, int]
    """By partition, the log index up to which changes were read; give it to `changes` to go on."""


class TableClient:
    """A table by name; all methods may be called from any thread."""

    def __init__(self, name: str, attempts: Attempts, pool: ThreadPoolExecutor) -> None:
        self.name = name
        self._attempts = attempts
        self._pool = pool
        self._writer = Writer(f"client-{uuid.uuid4().hex[:16]}", pool)
        self._seconds: float | None = None

    def within(self, seconds: float) -> TableClient:
        """The same table, whose calls have so many seconds each: `orders.within(2).get([1])`."""
        made = copy.copy(self)
        made._seconds = positive_seconds("within", seconds)
        return made

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return arrow_schema(self.row_schema)

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return self.row_schema.partitions

    @property
    def row_schema(self) -> RowSchema:
        """Its columns, keys and partitions, as stores know them now: it may have been given more columns."""
        return self._begin().route(self.name, anew=True).schema

    def _begin(self) -> Trying:
        return self._attempts.begin(self._seconds)

    def _do(self, work: Callable[[Trying, Route], T]) -> T:
        """Do something with the table as it is known; anew where it is another one by now, of the same name."""
        trying = self._begin()
        route = trying.route(self.name)
        while True:
            try:
                return work(trying, route)
            except TableDroppedError as error:
                known = self._known_now(trying, error)
                if known.key == route.key:
                    raise
                route = known
            except UnknownColumnError:
                # It may have been added since the columns were asked for.
                known = trying.route(self.name, anew=True)
                if known.schema == route.schema:
                    raise
                route = known
            except RuntimeError:
                # Threads are taken away by whoever closes the client.
                self._attempts.check_open()
                raise

    def _known_now(self, trying: Trying, error: TableDroppedError) -> Route:
        try:
            return trying.route(self.name, anew=True)
        except StoreError:
            raise error from None

    # Writing

    def upsert(self, rows: Any) -> Written:
        """Write whole rows: Arrow, pandas or dicts; each replaces the one with its key."""
        return self._write("upsert", rows)

    def append(self, rows: Any) -> Written:
        """Add rows to a table without primary key."""
        return self._write("append", rows)

    def _write(self, op: Op, rows: Any) -> Written:
        given = rows.read_all() if isinstance(rows, pa.RecordBatchReader) else rows  # which can be read only once

        def write(trying: Trying, route: Route) -> Written:
            return self._writer.write(trying, route, op, row_batches(given, route.schema))

        return self._do(write)

    def delete(self, keys: Any) -> Written:
        """Remove rows by their primary keys: dicts, Arrow, or plain values where the key is one column."""

        def write(trying: Trying, route: Route) -> Written:
            return self._writer.write(trying, route, "delete", key_batches(keys, route.schema))

        return self._do(write)

    def put(self, partition: int, batches: Iterable[tuple[int, pa.RecordBatch]], *, op: Op, writer: str) -> int:
        """Write batches of one partition under tokens of one's own; returns the log index that they all are in.

        The batches are in the table's shape, each with its sequence, from 1 on. Whoever sends a token again, from
        wherever, writes nothing; a store remembers the last 1,024 of a writer. Their order is left open.
        """
        trying = self._begin()
        route = trying.route(self.name)
        request = PutRequest(table=route.key, partition=partition, op=op, writer=writer)
        return send_stamped(trying, route, request, batches)

    # Reading

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | list[Any] | None = None,  # noqa: A002 - what it is called everywhere
        *,
        limit: int | None = None,
        max_age: float | None = None,
        at_least: Mapping[int, int] | None = None,
        pins: Mapping[int, str] | None = None,
    ) -> pa.Table:
        """Rows, as of now; or from any replica at most `max_age` seconds old, past a write, or at pins."""
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

        def read(trying: Trying, route: Route) -> list[tuple[pa.Table, int]]:
            _check_by_partition("at_least", at_least, route, int)
            _check_by_partition("pins", pins, route, str, everywhere=True)
            return self._read_all(ask, trying, route)

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
        """The rows of one partition as they come; one that breaks off in the middle is the caller's to read anew."""
        trying = self._begin()
        route = trying.route(self.name)
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

        def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> RowStream:
            # Without a deadline, a store that hangs would never be noticed to.
            list(client.do_action(flight.Action("routes", encode(RoutesRequest(table=self.name))), options))
            return RowStream(client.do_get(ticket, self._attempts.endless))

        return _attempt(trying, request)(route, partition, call)

    def count(self, filter: Filter | list[Any] | None = None) -> int:  # noqa: A002
        """How many rows there are; counted by the stores."""
        figures, condition = (Aggregate(function="count", name="rows"),), filter_of(filter)

        def ask(route: Route, partition: int) -> ReadRequest:
            return ReadRequest(table=route.key, partition=partition, filter=condition, aggregates=figures)

        return sum(int(rows.column("rows")[0].as_py()) for rows, _ in self._do(partial(self._read_all, ask)))

    def get(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows with these primary keys; those that are not there are left out."""
        names = column_names(columns)

        def look_up(trying: Trying, route: Route) -> pa.Table:
            asked = list(_keys_by_partition(key_batches(keys, route.schema), route.schema))
            found = self._side_by_side(trying, lambda item: _look_up(trying, route, *item, names), asked)
            return pa.concat_tables(found) if found else _empty(route.schema, names)

        return self._do(look_up)

    def changes(self, from_: Mapping[int, int] | None = None) -> Changes:
        """What changed in each partition past these log indexes; from the oldest that is kept where none is given.

        `RetentionError.first` says where changes begin, if they do not reach back to what was given. Of many changes
        the first come, up to 262,144 or so of each partition: go on until there are none.
        """
        given = {} if from_ is None else from_

        def read(trying: Trying, route: Route) -> Changes:
            _check_by_partition("from_", given, route, int)
            found = self._everywhere(trying, route, lambda partition: _changed(trying, route, partition, given))
            return Changes(pa.concat_tables([rows for rows, _ in found]), {p: at for p, (_, at) in enumerate(found)})

        return self._do(read)

    @contextmanager
    def pinned(self, *, seconds: float = 600.0) -> Iterator[dict[int, str]]:
        """Keep all partitions readable as they are now: `with table.pinned() as pins: table.scan(pins=pins)`."""
        name = f"client-{uuid.uuid4().hex[:16]}"
        try:
            yield dict.fromkeys(self.pin(name, seconds=seconds), name)
        finally:
            # It ends by itself, too; what went wrong meanwhile is what matters.
            with suppress(*PASSING, TableDroppedError):
                self.unpin(name)

    def pin(self, name: str, *, seconds: float, partitions: Iterable[int] | None = None) -> dict[int, PinResult]:
        """Keep partitions readable as they are now under a name; where it is a pin's already, make that live longer."""
        only = None if partitions is None else list(partitions)

        def pin(trying: Trying, route: Route) -> dict[int, PinResult]:
            wanted = list(range(len(route.partitions))) if only is None else only
            one = partial(_pin, trying, route, name=name, seconds=seconds)
            return dict(zip(wanted, self._side_by_side(trying, one, wanted), strict=True))

        return self._do(pin)

    def unpin(self, name: str) -> None:
        """Let the pins of a name go; done where there are none."""
        self._do(lambda trying, route: self._everywhere(trying, route, partial(_unpin, trying, route, name=name)))

    def _read_all(
        self, ask: Callable[[Route, int], ReadRequest], trying: Trying, route: Route
    ) -> list[tuple[pa.Table, int]]:
        return self._everywhere(trying, route, lambda partition: _read(trying, route, ask(route, partition)))

    def _everywhere(self, trying: Trying, route: Route, work: Callable[[int], T]) -> list[T]:
        return self._side_by_side(trying, work, range(len(route.partitions)))

    def _side_by_side(self, trying: Trying, work: Callable[[U], T], items: Iterable[U]) -> list[T]:
        def do(item: U) -> T:
            done = work(item)
            trying.went_on()
            return done

        futures = [self._pool.submit(do, item) for item in items]
        try:
            return [trying.wait(future) for future in futures]
        except TimeoutError:
            raise UnavailableError(f"not all partitions answered within {trying.seconds:g} s") from None
        finally:
            for future in futures:
                future.cancel()

    def verify(self) -> list[Verified]:
        """Have the replicas of every partition compared; a store that differs says so in its metrics, too."""
        return self._do(self._verify)

    def _verify(self, trying: Trying, route: Route) -> list[Verified]:
        return self._everywhere(trying, route, partial(verify_partition, trying, self._attempts.routes, route))

    def heal(self) -> list[Verified]:
        """Compare like `verify`, and have every replica built anew that has other rows than most of them."""

        def heal(trying: Trying, route: Route) -> list[Verified]:
            found = self._verify(trying, route)
            for one in found:
                if one.wrong:
                    rebuild_wrong(trying, self._attempts.routes, route, one)
                    # They find out with the next entry of the log, which a barrier is.
                    verify_partition(trying, self._attempts.routes, route, one.partition)
            return found

        return self._do(heal)

    def wait_until_readable(self, *, seconds: float = 30.0) -> None:
        """Wait until every partition has a leader that answers."""
        self.within(seconds).count()


def column_names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return columns as they are asked for."""
    if isinstance(columns, str):
        raise RequestError(f"columns: got {columns!r}; allowed: a list of names, like [{columns!r}]")
    return None if columns is None else tuple(columns)


def _check_by_partition(
    field: str, given: Mapping[int, Any] | None, route: Route, kind: type, *, everywhere: bool = False
) -> None:
    """Refuse what names no partition, as a number in text does: it would not be heeded, and nobody would know."""
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
            raise RequestError(f"{field}: got {value!r} for partition {partition}; allowed: {_MEANT[kind]}")
    missing = next((partition for partition in range(count) if everywhere and partition not in given), None)
    if missing is not None:
        raise RequestError(f"{field}: got none for partition {missing}; allowed: one for each, as `pinned` gives them")


def _attempt(trying: Trying, request: ReadRequest) -> Callable[[Route, int, Call[T]], T]:
    relaxed = request.max_age is not None or request.at_least is not None or request.pin
    return trying.anywhere if relaxed else trying.at_leader


def _read(trying: Trying, route: Route, request: ReadRequest) -> tuple[pa.Table, int]:
    """The rows of one partition, and the index they are of."""
    ticket = flight.Ticket(encode(request))

    def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> tuple[pa.Table, int]:
        reader = client.do_get(ticket, options)
        batches, index = [], 0
        for chunk in reader:
            batches.append(chunk.data)
            if chunk.app_metadata is not None:
                index = decode(ReadStamp, chunk.app_metadata.to_pybytes()).index
        return pa.Table.from_batches(batches, schema=reader.schema), index

    assert request.partition is not None
    return _attempt(trying, request)(route, request.partition, call)


def _changed(trying: Trying, route: Route, partition: int, given: Mapping[int, int]) -> tuple[pa.Table, int]:
    request = ReadRequest(table=route.key, partition=partition, changes_after=given.get(partition, 0))
    try:
        return _read(trying, route, request)
    except RetentionError as error:
        if partition in given:
            raise
        return _read(trying, route, msgspec.structs.replace(request, changes_after=max(0, error.first - 1)))


def _pin(trying: Trying, route: Route, partition: int, *, name: str, seconds: float) -> PinResult:
    body = encode(PinRequest(table=route.key, partition=partition, name=name, seconds=seconds))

    def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> PinResult:
        [result] = client.do_action(flight.Action("pin", body), options)
        return decode(PinResult, result.body.to_pybytes())

    return trying.at_leader(route, partition, call)


def _unpin(trying: Trying, route: Route, partition: int, *, name: str) -> None:
    body = encode(UnpinRequest(table=route.key, partition=partition, name=name))

    def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        list(client.do_action(flight.Action("unpin", body), options))

    trying.at_leader(route, partition, call)


def _keys_by_partition(batches: Iterable[pa.RecordBatch], schema: RowSchema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut keys into what one store looks up at once."""
    for batch in batches:
        places = partitions_of(batch, schema)
        for place in np.unique(places):
            own = batch.filter(pa.array(places == place))
            for start in range(0, own.num_rows, _KEYS_AT_ONCE):
                yield int(place), own.slice(start, _KEYS_AT_ONCE)


def _look_up(
    trying: Trying, route: Route, partition: int, keys: pa.RecordBatch, columns: tuple[str, ...] | None
) -> pa.Table:
    body = pack(LookupRequest(table=route.key, partition=partition, columns=columns), _stream([keys]))

    def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> pa.Table:
        [result] = client.do_action(flight.Action("lookup", body), options)
        return pa.ipc.open_stream(result.body).read_all()

    return trying.at_leader(route, partition, call)


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
    made: bytes = sink.getvalue().to_pybytes()
    return made

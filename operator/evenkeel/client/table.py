"""One table: written, read, looked up, followed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import flight

from evenkeel.client.attempts import Attempts, Call
from evenkeel.client.filters import Filter, filter_of
from evenkeel.client.frames import key_batches, row_batches
from evenkeel.client.streams import RowStream
from evenkeel.client.verifying import Verified, rebuild_wrong, verify_partition
from evenkeel.client.writes import Op, Writer, Written, send_stamped
from evenkeel.errors import RetentionError, StoreError, UnknownColumnError
from evenkeel.rows.partitions import partitions_of
from evenkeel.rows.schema import RowSchema, arrow_schema
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
        self._writer = Writer(name, f"client-{uuid.uuid4().hex[:16]}", attempts, pool)

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return arrow_schema(self._schema())

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return self._schema().partitions

    @property
    def row_schema(self) -> RowSchema:
        """Its columns, keys and partitions, as stores know them."""
        return self._schema()

    def _schema(self) -> RowSchema:
        return self._attempts.routes.table(self.name).schema

    def _known(self, work: Callable[[RowSchema], T]) -> T:
        """Do something with the columns; if one is unknown, it may have been added since they were asked for."""
        try:
            return work(self._schema())
        except UnknownColumnError:
            return work(self._attempts.routes.table(self.name, anew=True).schema)

    # Writing

    def upsert(self, rows: Any) -> Written:
        """Write whole rows: Arrow, pandas or dicts; each replaces the one with its key."""
        batches = self._known(lambda schema: row_batches(rows, schema))
        return self._writer.write("upsert", batches, self._schema())

    def append(self, rows: Any) -> Written:
        """Add rows to a table without primary key."""
        batches = self._known(lambda schema: row_batches(rows, schema))
        return self._writer.write("append", batches, self._schema())

    def delete(self, keys: Any) -> Written:
        """Remove rows by their primary keys: dicts, Arrow, or plain values where the key is one column."""
        batches = key_batches(keys, self._schema())
        return self._writer.write("delete", batches, self._schema())

    def put(self, partition: int, batches: Iterable[tuple[int, pa.RecordBatch]], *, op: Op, writer: str) -> int:
        """Write batches of one partition under tokens of one's own; returns the log index that they all are in.

        The batches are in the table's shape, each with its sequence, from 1 on. Whoever sends a token again, from
        wherever, writes nothing; a store remembers the last 1,024 of a writer. Their order is left open.
        """
        request = PutRequest(table=self.name, partition=partition, op=op, writer=writer)
        return send_stamped(self._attempts, request, batches)

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

        def read(partition: int) -> pa.Table:
            request = ReadRequest(
                table=self.name,
                partition=partition,
                columns=None if columns is None else tuple(columns),
                filter=filter_of(filter),
                limit=limit,
                max_age=max_age,
                at_least=None if at_least is None else at_least.get(partition),
                pin="" if pins is None else pins.get(partition, ""),
            )
            return self._read(request)[0]

        rows = self._everywhere(read)
        found = pa.concat_tables(rows)
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
        request = ReadRequest(
            table=self.name,
            partition=partition,
            columns=None if columns is None else tuple(columns),
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

        return self._attempt(request)(self.name, partition, call)

    def count(self, filter: Filter | list[Any] | None = None) -> int:  # noqa: A002
        """How many rows there are; counted by the stores."""

        def read(partition: int) -> int:
            figures = (Aggregate(function="count", name="rows"),)
            request = ReadRequest(table=self.name, partition=partition, filter=filter_of(filter), aggregates=figures)
            return int(self._read(request)[0].column("rows")[0].as_py())

        return sum(self._everywhere(read))

    def get(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows with these primary keys; those that are not there are left out."""
        schema = self._schema()
        asked: dict[int, list[pa.RecordBatch]] = {}
        for batch in key_batches(keys, schema):
            places = partitions_of(batch, schema)
            for place in np.unique(places):
                asked.setdefault(int(place), []).append(batch.filter(pa.array(places == place)))
        found = list(self._pool.map(lambda item: self._lookup(item[0], item[1], columns), asked.items()))
        names = list(columns) if columns is not None else list(schema.names)
        return pa.concat_tables(found) if found else arrow_schema(schema).empty_table().select(names)

    def _lookup(self, partition: int, batches: list[pa.RecordBatch], columns: Sequence[str] | None) -> pa.Table:
        names = None if columns is None else tuple(columns)
        body = pack(LookupRequest(table=self.name, partition=partition, columns=names), _stream(batches))

        def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> pa.Table:
            [result] = client.do_action(flight.Action("lookup", body), options)
            return pa.ipc.open_stream(result.body).read_all()

        return self._attempts.at_leader(self.name, partition, call)

    def changes(self, from_: Mapping[int, int] | None = None) -> Changes:
        """What changed in each partition past these log indexes; from the oldest that is kept where none is given.

        `RetentionError.first` says where changes begin, if they do not reach back to what was given.
        """

        def read(partition: int) -> tuple[int, pa.Table, int]:
            request = ReadRequest(table=self.name, partition=partition, changes_after=(from_ or {}).get(partition, 0))
            try:
                return partition, *self._read(request)
            except RetentionError as error:
                if partition in (from_ or {}):
                    raise
                oldest = msgspec.structs.replace(request, changes_after=max(0, error.first - 1))
                return partition, *self._read(oldest)

        found = self._everywhere(read)
        rows = pa.concat_tables([rows for _, rows, _ in found])
        return Changes(rows, {partition: index for partition, _, index in found})

    @contextmanager
    def pinned(self, *, seconds: float = 600.0) -> Iterator[dict[int, str]]:
        """Keep all partitions readable as they are now: `with table.pinned() as pins: table.scan(pins=pins)`."""
        name = f"client-{uuid.uuid4().hex[:16]}"
        self.pin(name, seconds=seconds)
        try:
            yield dict.fromkeys(range(self.partitions), name)
        finally:
            self.unpin(name)

    def pin(self, name: str, *, seconds: float, partitions: Iterable[int] | None = None) -> dict[int, PinResult]:
        """Keep partitions readable as they are now under a name; where it is a pin's already, make that live longer."""
        wanted = list(range(self.partitions) if partitions is None else partitions)
        return dict(zip(wanted, self._pool.map(partial(self._pin, name=name, seconds=seconds), wanted), strict=True))

    def unpin(self, name: str) -> None:
        """Let the pins of a name go; done where there are none."""
        self._everywhere(partial(self._unpin, name=name))

    def _pin(self, partition: int, *, name: str, seconds: float) -> PinResult:
        body = encode(PinRequest(table=self.name, partition=partition, name=name, seconds=seconds))

        def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> PinResult:
            [result] = client.do_action(flight.Action("pin", body), options)
            return decode(PinResult, result.body.to_pybytes())

        return self._attempts.at_leader(self.name, partition, call)

    def _unpin(self, partition: int, *, name: str) -> None:
        body = encode(UnpinRequest(table=self.name, partition=partition, name=name))

        def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
            list(client.do_action(flight.Action("unpin", body), options))

        self._attempts.at_leader(self.name, partition, call)

    def _read(self, request: ReadRequest) -> tuple[pa.Table, int]:
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
        return self._attempt(request)(self.name, request.partition, call)

    def _attempt(self, request: ReadRequest) -> Callable[[str, int, Call[T]], T]:
        relaxed = request.max_age is not None or request.at_least is not None or request.pin
        return self._attempts.anywhere if relaxed else self._attempts.at_leader

    def _everywhere(self, work: Callable[[int], T]) -> list[T]:
        return list(self._pool.map(work, range(self.partitions)))

    def verify(self) -> list[Verified]:
        """Have the replicas of every partition compared; a store that differs says so in its metrics, too."""
        return self._everywhere(lambda partition: verify_partition(self._attempts, self.name, partition))

    def heal(self) -> list[Verified]:
        """Compare like `verify`, and have every replica built anew that has other rows than most of them."""
        found = self.verify()
        wrong = [one for one in found if one.wrong]
        for one in wrong:
            rebuild_wrong(self._attempts, self.name, one)
            # They find out with the next entry of the log, which a barrier is.
            verify_partition(self._attempts, self.name, one.partition)
        return found

    def wait_until_readable(self, *, seconds: float = 30.0) -> None:
        """Wait until every partition has a leader that answers."""
        until = time.monotonic() + seconds
        while True:
            try:
                self.count()
            except StoreError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return


def _stream(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    made: bytes = sink.getvalue().to_pybytes()
    return made

"""Rows on their way: split by partition, each batch with a token, sent until every one is answered.

A batch is sent again when nobody can say what became of it, or when another store has to be asked; the token lets the
store recognise it. So what `write` returned is written once, and what it raised for is written once or not at all.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import flight

from evenkeel.client.lanes import Lane, Op
from evenkeel.client.retries import PASSING, Trying
from evenkeel.client.route_cache import Route
from evenkeel.client.store_connections import store_error
from evenkeel.errors import OutcomeUnknownError, RequestError, StoreError, TooLargeError, UnavailableError
from evenkeel.rows.partitioning import partitions_of
from evenkeel.rows.row_schema import RowSchema
from evenkeel.wire.flight import PutRequest, PutResult, PutToken, decode, decode_error, encode
from evenkeel.wire.socket_messages import MAX_ENTRY_BYTES

__all__ = ["Op", "Writer", "Written", "send_stamped"]

_AT_ONCE: Final = 32
"""Batches in one call: few enough that nobody waits for the other to read."""
_BATCH_BYTES: Final = 8 << 20
_TURN_BYTES: Final = 32 << 20
_LARGEST_ROW: Final = MAX_ENTRY_BYTES - (64 << 10)
"""What an entry has beside its rows takes less than the rest."""


class Written(Struct, frozen=True):
    """What a write came to."""

    rows: int
    indexes: dict[int, int]
    """By partition, the log index at or below which all its rows are: for `at_least` reads."""


class Writer:
    """One writer of one table; tokens count up for each partition."""

    def __init__(self, name: str, pool: ThreadPoolExecutor) -> None:
        self._name = name
        self._pool = pool
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._guard = threading.Lock()

    def write(self, trying: Trying, route: Route, op: Op, batches: Iterable[pa.RecordBatch]) -> Written:
        """Write all of it; partitions go side by side, the batches of one in their order."""
        split = _split(batches, route.schema)
        rows = sum(batch.num_rows for found in split.values() for batch in found)
        futures = {partition: self._lane(route, partition).add(op, found, trying) for partition, found in split.items()}
        errors: list[StoreError] = []
        indexes = {}
        for partition, future in futures.items():
            try:
                indexes[partition] = _wait(future, trying)
            except StoreError as error:
                errors.append(error)
        if errors:
            raise _telling(errors)
        return Written(rows, indexes)

    def _lane(self, route: Route, partition: int) -> Lane:
        with self._guard:
            place = (route.key, partition)
            if place not in self._lanes:
                send = partial(self._write, route=route, partition=partition, sequences=itertools.count(1))
                self._lanes[place] = Lane(send, self._pool)
            return self._lanes[place]

    def _write(
        self,
        op: Op,
        batches: list[pa.RecordBatch],
        trying: Trying,
        *,
        route: Route,
        partition: int,
        sequences: itertools.count[int],
    ) -> int:
        """Write batches in their order: a store forgets a writer's older tokens."""
        request = PutRequest(table=route.key, partition=partition, op=op, writer=self._name)
        index = 0
        for turn in _turns((next(sequences), batch) for batch in batches):
            in_order = partial(_put_in_order, op, turn, sequences)
            index = max(index, _send_turn(trying, route, request, turn, before_again=in_order))
        return index


def _wait(future: Future[int], trying: Trying) -> int:
    """Wait until the deadline; what was not sent by then never is."""
    try:
        return trying.wait(future)
    except TimeoutError:
        if future.cancel():
            raise UnavailableError(f"what was to be written before it took {trying.seconds:g} s: try again") from None
        raise _unknown("no answer in time") from None


def _telling(errors: list[StoreError]) -> StoreError:
    """Return the error that says most about a call: that something may be written, else what is wrong for good."""
    unknown = [error for error in errors if isinstance(error, OutcomeUnknownError)]
    final = [error for error in errors if not isinstance(error, PASSING)]
    return (unknown or final or errors)[0]


def send_stamped(
    trying: Trying, route: Route, request: PutRequest, batches: Iterable[tuple[int, pa.RecordBatch]]
) -> int:
    """Write batches under sequences that they came with; returns the newest log index among them."""
    return max((_send_turn(trying, route, request, turn) for turn in _turns(batches)), default=0)


def _send_turn(
    trying: Trying,
    route: Route,
    request: PutRequest,
    turn: list[_Sent],
    *,
    before_again: Callable[[], None] = lambda: None,
) -> int:
    newest, unsure = 0, False

    def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        nonlocal newest, unsure
        results, failure = _put(client, options, request, [sent for sent in turn if not sent.done])
        for sent, result in results:
            sent.done = True
            newest = max(newest, result.index)
        if failure is not None:
            unsure = unsure or isinstance(failure, OutcomeUnknownError)
            before_again()
            raise failure

    try:
        trying.at_leader(route, request.partition, call)
    except RequestError:
        raise
    except StoreError as error:
        if unsure and not isinstance(error, OutcomeUnknownError):
            # The last attempt wrote nothing; one before it may have.
            raise _unknown(str(error)) from error
        raise
    trying.went_on()
    return newest


def _turns(batches: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[list[_Sent]]:
    turn, size = [], 0
    for sequence, batch in batches:
        turn.append(_Sent(sequence, batch))
        size += batch.nbytes
        if len(turn) == _AT_ONCE or size >= _TURN_BYTES:
            yield turn
            turn, size = [], 0
    if turn:
        yield turn


class _Sent(Struct):
    """A batch on its way."""

    sequence: int
    batch: Any
    done: bool = False


def _put_in_order(op: Op, turn: list[_Sent], sequences: itertools.count[int]) -> None:
    """Write what overtook a batch that failed once more behind it, as something new: the last write of a key wins."""
    if op == "append":
        return
    failed = False
    for sent in turn:
        if failed and sent.done:
            sent.sequence, sent.done = next(sequences), False
        failed = failed or not sent.done


def _put(
    client: flight.FlightClient, options: flight.FlightCallOptions, request: PutRequest, batches: list[_Sent]
) -> tuple[list[tuple[_Sent, PutResult]], StoreError | None]:
    """One call; returns what was written, and the first error of what was not."""
    descriptor = flight.FlightDescriptor.for_command(encode(request))
    writer, reader = client.do_put(descriptor, batches[0].batch.schema, options)
    done: list[tuple[_Sent, PutResult]] = []
    failure: StoreError | None = None
    try:
        for sent in batches:
            writer.write_with_metadata(sent.batch, encode(PutToken(sequence=sent.sequence)))
        writer.done_writing()
        for sent in batches:
            answer = reader.read()
            if answer is None:
                break
            result = decode(PutResult, answer.to_pybytes())
            if result.error is None:
                done.append((sent, result))
            else:
                failure = failure or decode_error(result.error)
        writer.close()
    except (pa.ArrowException, OSError) as error:
        # Results that were read stay good; the call itself ends with the first error among them.
        failure = failure or _broken_off(error)
    return done, failure


def _broken_off(error: Exception) -> StoreError:
    """Return what a call ended with: where the store itself did not say, batches may have reached it."""
    said = store_error(error)
    never_there = "failed to connect" in str(error)
    return said if getattr(error, "extra_info", None) or never_there else _unknown(str(said))


def _unknown(why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"whether it was written is not known: {why}")


def _split(batches: Iterable[pa.RecordBatch], schema: RowSchema) -> dict[int, list[pa.RecordBatch]]:
    """Rows by partition, those of one partition in batches that fit an entry."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        for partition, part in _partitioned(batch, schema):
            found.setdefault(partition, []).extend(_sized(part, schema))
    return found


def _partitioned(batch: pa.RecordBatch, schema: RowSchema) -> Iterator[tuple[int, pa.RecordBatch]]:
    places = partitions_of(batch, schema)
    if (places == places[:1]).all():
        # Most small writes are one row, and to take it out of its batch would cost more than all else here.
        yield from ((int(place), batch) for place in places[:1])
        return
    order = np.argsort(places, kind="stable")
    ordered, starts = np.unique(places[order], return_index=True)
    ends = [*starts[1:], len(places)]
    for partition, start, end in zip(ordered, starts, ends, strict=True):
        yield int(partition), batch.take(pa.array(order[start:end]))


def _sized(batch: pa.RecordBatch, schema: RowSchema) -> Iterator[pa.RecordBatch]:
    """Halve a batch until its parts are small: a few of its rows may have most of the bytes."""
    if batch.nbytes <= _BATCH_BYTES:
        yield batch
    elif batch.num_rows == 1:
        _check_row(batch, schema)
        yield batch
    else:
        half = batch.num_rows // 2
        yield from _sized(batch.slice(0, half), schema)
        yield from _sized(batch.slice(half), schema)


def _check_row(row: pa.RecordBatch, schema: RowSchema) -> None:
    """Refuse a row that no entry takes before any other is sent."""
    if row.nbytes > _LARGEST_ROW:
        key = row.select(list(schema.primary_key)).to_pylist()[0]
        which = f" with the key {str(key)[:200]}" if key else ""
        raise TooLargeError(f"a row{which} has {row.nbytes} bytes; at most {_LARGEST_ROW} can be", limit=_LARGEST_ROW)

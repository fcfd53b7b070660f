"""Rows on their way: split by partition, each batch with a token, sent until every one is answered.

A batch is sent again when nobody can say what became of it, or when another store has to be asked; the token lets the
store recognise it. So what `write` returned is written once, and what it raised for is written once or not at all.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import flight

from evenkeel.client.attempts import Attempts
from evenkeel.client.connections import store_error
from evenkeel.client.lanes import Lane, Op
from evenkeel.errors import StoreError
from evenkeel.rows.partitions import partitions_of
from evenkeel.rows.schema import RowSchema
from evenkeel.wire.flight import PutRequest, PutResult, PutToken, decode, decode_error, encode

__all__ = ["Op", "Writer", "Written", "send_stamped"]

_AT_ONCE: Final = 32
"""Batches in one call: few enough that nobody waits for the other to read."""
_BATCH_BYTES: Final = 8 << 20
_TURN_BYTES: Final = 32 << 20


class Written(Struct, frozen=True):
    """What a write came to."""

    rows: int
    indexes: dict[int, int]
    """By partition, the log index at or below which all its rows are: for `at_least` reads."""


class Writer:
    """One writer of one table; tokens count up for each partition."""

    def __init__(self, table: str, name: str, attempts: Attempts, pool: ThreadPoolExecutor) -> None:
        self._table = table
        self._name = name
        self._attempts = attempts
        self._pool = pool
        self._lanes: dict[int, Lane] = {}
        self._guard = threading.Lock()

    def write(self, op: Op, batches: Iterable[pa.RecordBatch], schema: RowSchema) -> Written:
        """Write all of it; partitions go side by side, the batches of one in their order."""
        split = _split(batches, schema)
        rows = sum(batch.num_rows for found in split.values() for batch in found)
        futures = {partition: self._lane(partition).add(op, found) for partition, found in split.items()}
        errors, indexes = [], {}
        for partition, future in futures.items():
            try:
                indexes[partition] = future.result()
            except StoreError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return Written(rows, indexes)

    def _lane(self, partition: int) -> Lane:
        with self._guard:
            if partition not in self._lanes:
                send = partial(self._write, partition, itertools.count(1))
                self._lanes[partition] = Lane(send, self._pool)
            return self._lanes[partition]

    def _write(self, partition: int, sequences: itertools.count[int], op: Op, batches: list[pa.RecordBatch]) -> int:
        """Write batches in their order: a store forgets a writer's older tokens."""
        index = 0
        for start in range(0, len(batches), _AT_ONCE):
            turn = [_Sent(next(sequences), batch) for batch in batches[start : start + _AT_ONCE]]
            index = max(index, self._send(op, partition, turn, sequences))
        return index

    def _send(self, op: Op, partition: int, turn: list[_Sent], sequences: itertools.count[int]) -> int:
        request = PutRequest(table=self._table, partition=partition, op=op, writer=self._name)
        return _send_turn(self._attempts, request, turn, before_again=lambda: _put_in_order(op, turn, sequences))


def send_stamped(attempts: Attempts, request: PutRequest, batches: Iterable[tuple[int, pa.RecordBatch]]) -> int:
    """Write batches under sequences that they came with; returns the newest log index among them."""
    return max((_send_turn(attempts, request, turn) for turn in _turns(batches)), default=0)


def _send_turn(
    attempts: Attempts, request: PutRequest, turn: list[_Sent], *, before_again: Callable[[], None] = lambda: None
) -> int:
    newest = 0

    def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        nonlocal newest
        results, failure = _put(client, options, request, [sent for sent in turn if not sent.done])
        for sent, result in results:
            sent.done = True
            newest = max(newest, result.index)
        if failure is not None:
            before_again()
            raise failure

    attempts.at_leader(request.table, request.partition, call)
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
        failure = failure or store_error(error)
    return done, failure


def _split(batches: Iterable[pa.RecordBatch], schema: RowSchema) -> dict[int, list[pa.RecordBatch]]:
    """Rows by partition, those of one partition in batches that fit an entry."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        for partition, part in _partitioned(batch, schema):
            found.setdefault(partition, []).extend(_sized(part))
    return found


def _partitioned(batch: pa.RecordBatch, schema: RowSchema) -> Iterator[tuple[int, pa.RecordBatch]]:
    places = partitions_of(batch, schema)
    order = np.argsort(places, kind="stable")
    ordered, starts = np.unique(places[order], return_index=True)
    ends = [*starts[1:], len(places)]
    for partition, start, end in zip(ordered, starts, ends, strict=True):
        yield int(partition), batch.take(pa.array(order[start:end]))


def _sized(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    pieces = max(1, -(-batch.nbytes // _BATCH_BYTES))
    rows = max(1, -(-batch.num_rows // pieces))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)

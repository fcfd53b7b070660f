"""The write path of a table: rows are split by partition, queued, and sent with write tokens until they are answered.

    TableWriter       splits the rows of a call by partition, and waits for all partitions
    PartitionQueue    sends the writes to one partition one after the other; small writes that queue up share a call
    _send_group       sends a group of batches until each one is answered

A batch is sent again if its outcome is unknown or if another store leads. The store recognises it by its write token
(writer, sequence). A call that returns has written its rows once; one that raises has written them once or not at all.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import flight

from evenkeel.client.retries import RETRYABLE, RetryingCall
from evenkeel.client.route_cache import Route
from evenkeel.client.store_connections import store_error
from evenkeel.errors import OutcomeUnknownError, RequestError, StoreError, TooLargeError, UnavailableError
from evenkeel.rows.partitioning import partitions_of
from evenkeel.rows.row_schema import RowSchema
from evenkeel.wire.flight import PutRequest, PutResult, PutToken, decode, decode_error, encode
from evenkeel.wire.socket_messages import MAX_ENTRY_BYTES

__all__ = ["Op", "PartitionQueue", "TableWriter", "WriteResult", "send_with_sequences"]

Op = Literal["upsert", "append", "delete"]
Send = Callable[[Op, list[pa.RecordBatch], RetryingCall], int]

_GROUP_BATCHES: Final = 32
"""Few enough that neither end of a call blocks on writing while the other does."""
_GROUP_BYTES: Final = 32 << 20
_BATCH_BYTES: Final = 8 << 20
_SHARED_BYTES: Final = 8 << 20
_LARGEST_ROW: Final = MAX_ENTRY_BYTES - (64 << 10)
"""Leaves room for the rest of an entry."""


class WriteResult(Struct, frozen=True):
    """The result of a write."""

    rows: int
    indexes: dict[int, int]
    """By partition, the log index at or below which all rows are: for `at_least` reads."""


class TableWriter:
    """One writer of one table; its sequences increase in each partition."""

    def __init__(self, name: str, pool: ThreadPoolExecutor) -> None:
        self._name = name
        self._pool = pool
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._lock = threading.Lock()

    def write(self, call: RetryingCall, route: Route, op: Op, batches: Iterable[pa.RecordBatch]) -> WriteResult:
        """Write all batches: partitions in parallel, the batches of one partition in order."""
        split = _split(batches, route.schema)
        rows = sum(batch.num_rows for found in split.values() for batch in found)
        futures = {partition: self._queue(route, partition).add(op, found, call) for partition, found in split.items()}
        errors: list[StoreError] = []
        indexes = {}
        for partition, future in futures.items():
            try:
                indexes[partition] = _wait(future, call)
            except StoreError as error:
                errors.append(error)
        if errors:
            raise _most_important(errors)
        return WriteResult(rows, indexes)

    def _queue(self, route: Route, partition: int) -> PartitionQueue:
        with self._lock:
            key = (route.key, partition)
            if key not in self._queues:
                send = partial(self._send, route=route, partition=partition, sequences=itertools.count(1))
                self._queues[key] = PartitionQueue(send, self._pool)
            return self._queues[key]

    def _send(
        self,
        op: Op,
        batches: list[pa.RecordBatch],
        call: RetryingCall,
        *,
        route: Route,
        partition: int,
        sequences: itertools.count[int],
    ) -> int:
        """Send batches in order, because a store forgets a writer's older tokens."""
        request = PutRequest(table=route.key, partition=partition, op=op, writer=self._name)
        index = 0
        for group in _groups((next(sequences), batch) for batch in batches):
            restore_order = partial(_restore_order, op, group, sequences)
            index = max(index, _send_group(call, route, request, group, before_retry=restore_order))
        return index


def _wait(future: Future[int], call: RetryingCall) -> int:
    """Wait until the deadline. A write that was not sent by then is cancelled."""
    try:
        return call.wait(future)
    except TimeoutError:
        if future.cancel():
            raise UnavailableError(
                f"timed out after {call.timeout:g} s behind an earlier write; nothing was written; retry"
            ) from None
        raise _outcome_unknown("no answer in time") from None


def _most_important(errors: list[StoreError]) -> StoreError:
    """Return an unknown outcome if there is one, otherwise an error that is not retryable, otherwise the first."""
    unknown = [error for error in errors if isinstance(error, OutcomeUnknownError)]
    final = [error for error in errors if not isinstance(error, RETRYABLE)]
    return (unknown or final or errors)[0]


# The queue of one partition


class _QueuedWrite(Struct):
    op: Op
    batches: list[Any]
    call: RetryingCall
    future: Future[int]

    @property
    def size(self) -> int:
        return sum(batch.nbytes for batch in self.batches)

    def can_join(self, other: _QueuedWrite) -> bool:
        same = self.op == other.op and self.batches[0].schema == other.batches[0].schema
        return same and self.op != "append"


class PartitionQueue:
    """Sends the writes to one partition one after the other; `send` writes batches and returns their log index.

    Writes that arrive while another is being sent share the next call, so many small writes need few calls and log
    entries. If a store rejects a shared call, each write is sent again alone. Appends never share a call: rows without
    a key would be written twice then.
    """

    def __init__(self, send: Send, pool: Executor) -> None:
        self._send = send
        self._pool = pool
        self._lock = threading.Lock()
        self._queued: deque[_QueuedWrite] = deque()
        self._sending = False

    def add(self, op: Op, batches: list[pa.RecordBatch], call: RetryingCall) -> Future[int]:
        """Queue batches; the future holds their log index, and can be cancelled until they are sent."""
        write = _QueuedWrite(op, batches, call, Future())
        with self._lock:
            self._queued.append(write)
            start, self._sending = not self._sending, True
        if start:
            self._pool.submit(self._run)
        return write.future

    def _run(self) -> None:
        while writes := self._next():
            self._send_together(writes)

    def _next(self) -> list[_QueuedWrite]:
        """Remove and return the next writes that can share a call, in order."""
        with self._lock:
            writes: list[_QueuedWrite] = []
            size = 0
            while self._queued and (not writes or self._queued[0].can_join(writes[0])):
                size += self._queued[0].size
                if writes and size > _SHARED_BYTES:
                    break
                write = self._queued.popleft()
                if write.future.set_running_or_notify_cancel():
                    writes.append(write)
            self._sending = bool(writes)
            return writes

    def _send_together(self, writes: Sequence[_QueuedWrite]) -> None:
        latest = max((write.call for write in writes), key=lambda call: call.deadline)
        try:
            index = self._send(writes[0].op, _joined(writes), latest)
        except StoreError as error:
            if len(writes) > 1 and not isinstance(error, RETRYABLE):
                for write in writes:
                    self._send_together([write])
                return
            _fail(writes, error)
        except BaseException as error:  # the callers wait for their futures
            _fail(writes, error)
        else:
            for write in writes:
                write.future.set_result(index)


def _joined(writes: Sequence[_QueuedWrite]) -> list[pa.RecordBatch]:
    batches = [batch for write in writes for batch in write.batches]
    if len(writes) == 1:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _fail(writes: Sequence[_QueuedWrite], error: BaseException) -> None:
    for write in writes:
        write.future.set_exception(error)


# Calls to the leader of a partition


class _SequencedBatch(Struct):
    sequence: int
    batch: Any
    written: bool = False


def send_with_sequences(
    call: RetryingCall, route: Route, request: PutRequest, batches: Iterable[tuple[int, pa.RecordBatch]]
) -> int:
    """Write batches with given sequences; return the newest log index among them."""
    return max((_send_group(call, route, request, group) for group in _groups(batches)), default=0)


def _groups(batches: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[list[_SequencedBatch]]:
    """Yield the batches that are sent in one call."""
    group, size = [], 0
    for sequence, batch in batches:
        group.append(_SequencedBatch(sequence, batch))
        size += batch.nbytes
        if len(group) == _GROUP_BATCHES or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _send_group(
    call: RetryingCall,
    route: Route,
    request: PutRequest,
    group: list[_SequencedBatch],
    *,
    before_retry: Callable[[], None] = lambda: None,
) -> int:
    newest, unknown = 0, False

    def send(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        nonlocal newest, unknown
        results, failure = _put(client, options, request, [one for one in group if not one.written])
        for one, result in results:
            one.written = True
            newest = max(newest, result.index)
        if failure is not None:
            unknown = unknown or isinstance(failure, OutcomeUnknownError)
            before_retry()
            raise failure

    try:
        call.at_leader(route, request.partition, send)
    except RequestError:
        raise
    except StoreError as error:
        if unknown and not isinstance(error, OutcomeUnknownError):
            # The last attempt wrote nothing, but an earlier one may have.
            raise _outcome_unknown(str(error)) from error
        raise
    call.extend_deadline()
    return newest


def _restore_order(op: Op, group: list[_SequencedBatch], sequences: itertools.count[int]) -> None:
    """Write batches that were written before a failed one again after it: the last write of a key must win."""
    if op == "append":
        return
    failed = False
    for one in group:
        if failed and one.written:
            one.sequence, one.written = next(sequences), False
        failed = failed or not one.written


def _put(
    client: flight.FlightClient,
    options: flight.FlightCallOptions,
    request: PutRequest,
    batches: list[_SequencedBatch],
) -> tuple[list[tuple[_SequencedBatch, PutResult]], StoreError | None]:
    """Make one call; return the results of written batches, and the first error among the others."""
    descriptor = flight.FlightDescriptor.for_command(encode(request))
    writer, reader = client.do_put(descriptor, batches[0].batch.schema, options)
    written: list[tuple[_SequencedBatch, PutResult]] = []
    failure: StoreError | None = None
    try:
        for one in batches:
            writer.write_with_metadata(one.batch, encode(PutToken(sequence=one.sequence)))
        writer.done_writing()
        for one in batches:
            answer = reader.read()
            if answer is None:
                break
            result = decode(PutResult, answer.to_pybytes())
            if result.error is None:
                written.append((one, result))
            else:
                failure = failure or decode_error(result.error)
        writer.close()
    except (pa.ArrowException, OSError) as error:
        # Results that arrived remain valid; the call itself ends with the first error among them.
        failure = failure or _call_error(error)
    return written, failure


def _call_error(error: Exception) -> StoreError:
    """Return the store's error. Without one the outcome is unknown, unless the connection failed."""
    known = store_error(error)
    not_connected = "failed to connect" in str(error)
    return known if getattr(error, "extra_info", None) or not_connected else _outcome_unknown(str(known))


def _outcome_unknown(why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"outcome unknown: {why}; the rows may have been written")


# Splitting rows


def _split(batches: Iterable[pa.RecordBatch], schema: RowSchema) -> dict[int, list[pa.RecordBatch]]:
    """Split rows by partition, and those of a partition into batches that fit a log entry."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        for partition, part in _by_partition(batch, schema):
            found.setdefault(partition, []).extend(_limited(part, schema))
    return found


def _by_partition(batch: pa.RecordBatch, schema: RowSchema) -> Iterator[tuple[int, pa.RecordBatch]]:
    partitions = partitions_of(batch, schema)
    if (partitions == partitions[:1]).all():
        # Most small writes are one row, and `take` would cost more than everything else here.
        yield from ((int(partition), batch) for partition in partitions[:1])
        return
    order = np.argsort(partitions, kind="stable")
    ordered, starts = np.unique(partitions[order], return_index=True)
    ends = [*starts[1:], len(partitions)]
    for partition, start, end in zip(ordered, starts, ends, strict=True):
        yield int(partition), batch.take(pa.array(order[start:end]))


def _limited(batch: pa.RecordBatch, schema: RowSchema) -> Iterator[pa.RecordBatch]:
    """Halve a batch until its parts are small enough: a few rows may have most of the bytes."""
    if batch.nbytes <= _BATCH_BYTES:
        yield batch
    elif batch.num_rows == 1:
        _check_row(batch, schema)
        yield batch
    else:
        half = batch.num_rows // 2
        yield from _limited(batch.slice(0, half), schema)
        yield from _limited(batch.slice(half), schema)


def _check_row(row: pa.RecordBatch, schema: RowSchema) -> None:
    """Reject a row that does not fit a log entry, before other rows are sent."""
    if row.nbytes > _LARGEST_ROW:
        key = row.select(list(schema.primary_key)).to_pylist()[0]
        which = f" with the key {str(key)[:200]}" if key else ""
        raise TooLargeError(
            f"a row{which} has {row.nbytes} bytes; at most {_LARGEST_ROW} are allowed", limit=_LARGEST_ROW
        )

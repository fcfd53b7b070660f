"""DoPut: rows in.

Each batch becomes one log entry. The receiving thread checks the batch, conforms it to the table's schema and proposes
it without waiting for earlier batches. Results are sent in order, when each batch is committed. A refused batch does
not stop those behind it; the call then ends with the first error.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from evenkeel.errors import (
    OutcomeUnknownError,
    RequestError,
    RowsError,
    StoreError,
    UnavailableError,
    UnknownColumnError,
    WrongPartitionError,
)
from evenkeel.rows.conform import conform_keys, conform_rows
from evenkeel.rows.partitioning import partitions_of
from evenkeel.rows.row_schema import RowSchema
from evenkeel.wire.flight import (
    Condition,
    ErrorInfo,
    IfAbsent,
    IfFence,
    PutRequest,
    PutResult,
    PutToken,
    decode,
    encode,
    encode_error,
)
from evenkeel.wire.socket_messages import MAX_ENTRY_BYTES
from evenkeel_store.engine import log_entries
from evenkeel_store.engine.group_state import Group
from evenkeel_store.serving.loop_bridge import LoopBridge
from evenkeel_store.serving.store_service import StoreService, too_large

__all__ = ["FlightWrites"]

_IN_FLIGHT: Final = 64
_KINDS: Final[dict[str, Callable[[str, int, int, int], log_entries.Write]]] = {
    "upsert": log_entries.Upsert,
    "append": log_entries.Append,
    "delete": log_entries.Delete,
}


class FlightWrites:
    """Answers DoPut calls."""

    def __init__(self, service: StoreService, bridge: LoopBridge) -> None:
        self._service = service
        self._bridge = bridge

    def put(self, command: bytes, reader: Any, writer: Any) -> None:
        """Log each batch and send its result."""
        request = decode(PutRequest, command)
        group = self._service.find(request.table, request.partition)
        self._service.check_can_lead(group)
        _check_request(request)
        results: queue.Queue[concurrent.futures.Future[PutResult] | None] = queue.Queue(_IN_FLIGHT)
        result_writer = _ResultWriter(results, writer)
        result_writer.start()
        try:
            for number, (batch, metadata) in enumerate(_chunks(reader)):
                sequence = decode(PutToken, metadata).sequence if metadata else request.sequence + number
                self._service.state_machine.counters["put_batches"] += 1
                results.put(self._begin(request, group, batch, sequence))
        finally:
            results.put(None)
            result_writer.join()
        if result_writer.error is not None:
            raise result_writer.error

    def _begin(
        self, request: PutRequest, group: Group, batch: pa.RecordBatch, sequence: int
    ) -> concurrent.futures.Future[PutResult]:
        try:
            data = self._entry(request, group, batch, sequence)
            return self._bridge.begin(self._log(request, group, data, sequence))
        except StoreError as error:
            refused: concurrent.futures.Future[PutResult] = concurrent.futures.Future()
            refused.set_exception(error)
            return refused

    def _entry(self, request: PutRequest, group: Group, batch: pa.RecordBatch, sequence: int) -> bytes:
        if batch.nbytes > MAX_ENTRY_BYTES:
            raise too_large()
        try:
            schema = self._schema(group)
            rows = _conformed(request, batch, schema)
        except UnknownColumnError:
            # The column may be new, and this store may not know it yet.
            self._bridge.call(self._service.refresh_columns(group))
            schema = self._schema(group)
            rows = _conformed(request, batch, schema)
        _check_partition(request, rows, schema)
        data = log_entries.encode_entry(self._entry_header(request, schema, sequence, self._service.stamp(group)), rows)
        if len(data) > MAX_ENTRY_BYTES:
            raise too_large()
        return data

    def _schema(self, group: Group) -> RowSchema:
        if group.metadata.schema is None:
            self._bridge.call(self._service.refresh_columns(group))
        schema = group.metadata.schema
        if schema is None:
            raise UnavailableError(f"table {group.metadata.name} has no columns yet; retry later")
        return schema

    def _entry_header(self, request: PutRequest, schema: RowSchema, sequence: int, at: int) -> log_entries.Write:
        token = (request.writer, sequence if request.writer else 0)
        if request.condition is None:
            return _KINDS[request.op](*token, schema.version, at)
        condition = _condition(request.condition)
        return log_entries.Conditional(*token, schema.version, at, request.op, condition)

    async def _log(self, request: PutRequest, group: Group, data: bytes, sequence: int) -> PutResult:
        committed = await self._service.propose(group, data)
        refused = ""
        if request.condition is not None:
            refused = await self._service.result_of(group, committed, request.writer, sequence)
        return PutResult(sequence=sequence, index=committed.index, term=committed.term, refused=refused)


class _ResultWriter(threading.Thread):
    """Sends results in the order of their batches while more batches are read."""

    def __init__(self, results: queue.Queue[concurrent.futures.Future[PutResult] | None], writer: Any) -> None:
        super().__init__(name="put results", daemon=True)
        self._results = results
        self._writer = writer
        self.error: StoreError | None = None

    def run(self) -> None:
        gone = False
        while (future := self._results.get()) is not None:
            result = self._result(future)
            if not gone:
                try:
                    self._writer.write(encode(result))
                except (pa.ArrowException, OSError):
                    # The client is gone; its batches are logged all the same.
                    gone = True

    def _result(self, future: concurrent.futures.Future[PutResult]) -> PutResult:
        try:
            return future.result()
        except StoreError as error:
            self.error = self.error or error
            return PutResult(error=encode_error(error))
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            stopping = OutcomeUnknownError("the store stopped; outcome unknown; retry with the same write token")
            self.error = self.error or stopping
            return PutResult(error=encode_error(stopping))
        except BaseException as error:
            self.error = self.error or StoreError(f"internal error while writing this batch: {error}")
            return PutResult(error=ErrorInfo(kind="store", message=str(error)))


def _chunks(reader: Any) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        if chunk.data is not None:
            yield chunk.data, chunk.app_metadata.to_pybytes() if chunk.app_metadata is not None else b""


def _check_request(request: PutRequest) -> None:
    if request.condition is None:
        return
    if not request.writer:
        raise RequestError("a conditional write needs a writer and a sequence: its result is stored under them")
    if not isinstance(request.condition, IfFence) and request.op == "append":
        raise RequestError("appended rows have no keys: `absent` and `present` need a table with a primary key")


def _conformed(request: PutRequest, batch: pa.RecordBatch, schema: RowSchema) -> pa.RecordBatch:
    if request.op == "delete":
        return conform_keys(batch, schema)
    if (request.op == "upsert") != bool(schema.primary_key):
        other = "upsert" if schema.primary_key else "append"
        what = "a" if schema.primary_key else "no"
        raise RowsError(f"the table has {what} primary key; write rows with `{other}`")
    return conform_rows(batch, schema)


def _check_partition(request: PutRequest, rows: pa.RecordBatch, schema: RowSchema) -> None:
    if schema.partitions == 1 or not rows.num_rows:
        return
    wrong = np.flatnonzero(partitions_of(rows, schema) != request.partition)
    if len(wrong):
        keys = rows.select(list(schema.partition_key)).slice(int(wrong[0]), 1).to_pylist()[0]
        raise WrongPartitionError(
            f"{len(wrong)} rows do not belong to partition {request.partition}, the first with {keys}: split rows by "
            "the hash of their partition key (evenkeel.rows.partitioning)"
        )


def _condition(condition: Condition) -> log_entries.Condition:
    if isinstance(condition, IfFence):
        return log_entries.Fence(condition.name, condition.number)
    return log_entries.Absent() if isinstance(condition, IfAbsent) else log_entries.Present()

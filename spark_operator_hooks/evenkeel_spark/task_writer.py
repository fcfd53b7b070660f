"""Writes the rows of each task once: all attempts of a task use the same write tokens.

Spark may run a task several times, even at once, and the attempts may get their rows in different orders. So a task
collects its rows, and assigns those of a partition to batches by the hash of their key. The same rows then make the
same batches in any order. The token of a batch consists of

    the job, the task, a sum over all rows of the partition, and the number of the batch

so another attempt writes nothing if its rows are the same, and everything if they differ: no row is lost. All rows of a
key are in one batch, in their original order, and the last one wins.

Rows that exceed the memory limit are written in parts, each like a separate task. A table without a primary key may
then have duplicate rows, if a task dies after a part and the next attempt gets its rows in another order.

Rows are visible as soon as their batch is written: a failed job leaves the rows that its tasks wrote.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from evenkeel.errors import InvalidInputError
from evenkeel.rows.conform import conform_rows
from evenkeel.rows.row_hashing import hash_rows, sum_of_hashes
from evenkeel.rows.row_schema import RowSchema
from evenkeel_spark.source_options import SourceOptions
from evenkeel_spark.worker_clients import freeze_loaded_objects, open_table

__all__ = ["Job", "Part", "Writer", "parts_of", "refuse_overwriting", "write"]

_COLLECTED_BYTES: Final = 256 << 20
_BATCH_BYTES: Final = 4 << 20
_MAX_BATCH_BYTES: Final = 16 << 20
_MAX_BATCHES: Final = 1024
_PARALLEL_PARTITIONS: Final = 4
"""Partitions that a task writes in parallel."""


class Job(Struct, frozen=True):
    """What all tasks of a write share."""

    options: SourceOptions
    id: str


class Part(NamedTuple):
    """Rows of one partition, in batches that do not depend on the order of the rows."""

    partition: int
    digest: str
    batches: list[pa.RecordBatch]


def write(job: Job, task: int, batches: Iterable[pa.RecordBatch]) -> int:
    """Write the rows of a task; return their number."""
    table = open_table(job.options)
    schema = table.row_schema
    op: Literal["upsert", "append"] = "upsert" if schema.primary_key else "append"
    written = 0
    with ThreadPoolExecutor(_PARALLEL_PARTITIONS, thread_name_prefix="evenkeel-write") as pool:
        for number, rows in enumerate(_collected(batches, schema)):

            def send(part: Part, number: int = number) -> None:
                writer = f"spark-{job.id}-{task}-{number}-{part.digest}"
                table.put(part.partition, enumerate(part.batches, start=1), op=op, writer=writer)

            list(pool.map(send, parts_of(rows, schema)))
            written += rows.num_rows
    return written


def _collected(batches: Iterable[pa.RecordBatch], schema: RowSchema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task with the table's schema, in as few batches as the memory limit allows."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(conform_rows(batch, schema))
        if sum(piece.nbytes for piece in held) >= _COLLECTED_BYTES:
            yield pa.concat_batches(held)
            held = []
    if any(batch.num_rows for batch in held):
        yield pa.concat_batches(held)


def parts_of(rows: pa.RecordBatch, schema: RowSchema) -> Iterator[Part]:
    """Split rows by partition, and those of a partition into batches by the hash of their key."""
    whole = hash_rows(rows)
    keys = hash_rows(rows.select(list(schema.primary_key))) if schema.primary_key else whole
    partitions = _partitions(rows, schema, keys)
    for partition in np.unique(partitions):
        own = np.flatnonzero(partitions == partition)
        yield _part(int(partition), rows.take(pa.array(own)), keys[own], sum_of_hashes(whole[own]))


def _partitions(rows: pa.RecordBatch, schema: RowSchema, keys: np.ndarray) -> np.ndarray:
    if schema.partitions == 1:
        return np.zeros(rows.num_rows, np.int64)
    same = schema.partition_key == schema.primary_key
    hashes = keys if same else hash_rows(rows.select(list(schema.partition_key)))
    return (hashes % np.uint64(schema.partitions)).astype(np.int64)


def _part(partition: int, rows: pa.RecordBatch, keys: np.ndarray, total: int) -> Part:
    count = max(1, -(-_width(rows) // _BATCH_BYTES))
    while True:
        batches = _spread(rows, keys, count)
        if count >= _MAX_BATCHES or max(batch.nbytes for batch in batches) <= _MAX_BATCH_BYTES:
            return Part(partition, f"{rows.num_rows}-{total:016x}-{count}", batches)
        count = min(2 * count, _MAX_BATCHES)


def _spread(rows: pa.RecordBatch, keys: np.ndarray, count: int) -> list[pa.RecordBatch]:
    """Split rows into batches by the high bits of their key's hash; the low bits determine the partition."""
    if count == 1:
        return [rows]
    numbers = ((keys >> np.uint64(32)) % np.uint64(count)).astype(np.int16)
    ordered = rows.take(pa.array(np.argsort(numbers, kind="stable")))
    ends = np.cumsum(np.bincount(numbers, minlength=count))
    return [ordered.slice(end - size, size) for end, size in zip(ends, np.diff(ends, prepend=0), strict=True)]


def _width(rows: pa.RecordBatch) -> int:
    """Return the size of the values in bytes, independent of Arrow's layout."""
    total = 0
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            total += (pc.sum(pc.binary_length(column)).as_py() or 0) + 4 * len(column)
        else:
            total += -(-column.type.bit_width // 8) * len(column)
    return total


class TaskResult(WriterCommitMessage):  # type: ignore[misc]
    """The result of a task."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class Writer(DataSourceArrowWriter):  # type: ignore[misc]
    """The writer that Spark calls on the driver and in every task."""

    def __init__(self, options: SourceOptions) -> None:
        self._job = Job(options, uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write the rows of this task."""
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        result = TaskResult(write(self._job, context.partitionId(), iterator))
        freeze_loaded_objects()
        return result


def refuse_overwriting(table: str) -> None:
    """Raise an error that names the alternatives: a table cannot be replaced atomically."""
    raise InvalidInputError(
        f'mode "overwrite": table {table} cannot be replaced as a whole; use .mode("append"), where a row replaces the '
        "row with its primary key, or drop and create the table"
    )

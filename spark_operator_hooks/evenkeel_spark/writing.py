"""Writing: each task sends its rows to the leaders of their partitions, under tokens that any other attempt at the task
would use too.

A task may run twice, at once even, and Spark promises neither attempt the same order of rows. So rows are not counted
off as they come: a task collects them, and spreads those of a partition over batches by the hash of their key. The same
rows make the same batches in whatever order they came; a batch's token is made of

    the job, the task, a sum over all rows of the partition, and the number of the batch

so the second attempt writes nothing if its rows are the same, and everything if they are not: nothing is lost either
way. All rows of a key are in one batch, in the order in which they came, and the last one wins.

What is too much to collect is written in parts, each as if it were a task of its own. A table without primary key may
then have rows twice, if a task dies after a part and the next attempt gets its rows in another order.

Rows are visible as soon as their batch is written: a job that fails in the middle leaves what its tasks wrote.
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
from evenkeel_spark.clients import open_table, spare_what_is_loaded
from evenkeel_spark.options import SourceOptions

__all__ = ["Job", "Part", "Writer", "parts_of", "refuse_overwriting", "write"]

_COLLECTED_BYTES: Final = 256 << 20
_BATCH_BYTES: Final = 4 << 20
_LARGEST_BATCH: Final = 16 << 20
_MOST_BATCHES: Final = 1024
_AT_ONCE: Final = 4
"""Partitions that a task writes side by side."""


class Job(Struct, frozen=True):
    """What is written, the same for all tasks."""

    options: SourceOptions
    id: str


class Part(NamedTuple):
    """Rows of one partition, in batches that do not depend on the order in which the rows came."""

    partition: int
    digest: str
    batches: list[pa.RecordBatch]


def write(job: Job, task: int, batches: Iterable[pa.RecordBatch]) -> int:
    """Write the rows of a task; returns how many there were."""
    table = open_table(job.options)
    schema = table.row_schema
    op: Literal["upsert", "append"] = "upsert" if schema.primary_key else "append"
    written = 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="evenkeel-write") as pool:
        for number, rows in enumerate(_collected(batches, schema)):

            def send(part: Part, number: int = number) -> None:
                writer = f"spark-{job.id}-{task}-{number}-{part.digest}"
                table.put(part.partition, enumerate(part.batches, start=1), op=op, writer=writer)

            list(pool.map(send, parts_of(rows, schema)))
            written += rows.num_rows
    return written


def _collected(batches: Iterable[pa.RecordBatch], schema: RowSchema) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows in as few pieces as memory allows, in the table's shape."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(conform_rows(batch, schema))
        if sum(piece.nbytes for piece in held) >= _COLLECTED_BYTES:
            yield _joined(held)
            held = []
    if any(batch.num_rows for batch in held):
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(batches)


def parts_of(rows: pa.RecordBatch, schema: RowSchema) -> Iterator[Part]:
    """Cut rows by partition, and those of a partition by the hash of their key."""
    whole = hash_rows(rows)
    keys = hash_rows(rows.select(list(schema.primary_key))) if schema.primary_key else whole
    places = _places(rows, schema, keys)
    for place in np.unique(places):
        own = np.flatnonzero(places == place)
        yield _part(int(place), rows.take(pa.array(own)), keys[own], sum_of_hashes(whole[own]))


def _places(rows: pa.RecordBatch, schema: RowSchema, keys: np.ndarray) -> np.ndarray:
    if schema.partitions == 1:
        return np.zeros(rows.num_rows, np.int64)
    same = schema.partition_key == schema.primary_key
    hashes = keys if same else hash_rows(rows.select(list(schema.partition_key)))
    return (hashes % np.uint64(schema.partitions)).astype(np.int64)


def _part(partition: int, rows: pa.RecordBatch, keys: np.ndarray, total: int) -> Part:
    count = max(1, -(-_width(rows) // _BATCH_BYTES))
    while True:
        batches = _spread(rows, keys, count)
        if count >= _MOST_BATCHES or max(batch.nbytes for batch in batches) <= _LARGEST_BATCH:
            return Part(partition, f"{rows.num_rows}-{total:016x}-{count}", batches)
        count = min(2 * count, _MOST_BATCHES)


def _spread(rows: pa.RecordBatch, keys: np.ndarray, count: int) -> list[pa.RecordBatch]:
    """Cut rows into batches by their keys' hashes; which partition they are in rests on the lowest bits."""
    if count == 1:
        return [rows]
    numbers = ((keys >> np.uint64(32)) % np.uint64(count)).astype(np.int16)
    ordered = rows.take(pa.array(np.argsort(numbers, kind="stable")))
    ends = np.cumsum(np.bincount(numbers, minlength=count))
    return [ordered.slice(end - size, size) for end, size in zip(ends, np.diff(ends, prepend=0), strict=True)]


def _width(rows: pa.RecordBatch) -> int:
    """How many bytes the values take, by the values alone."""
    total = 0
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            total += (pc.sum(pc.binary_length(column)).as_py() or 0) + 4 * len(column)
        else:
            total += -(-column.type.bit_width // 8) * len(column)
    return total


class Done(WriterCommitMessage):  # type: ignore[misc]
    """A task is through."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class Writer(DataSourceArrowWriter):  # type: ignore[misc]
    """What Spark asks, on the driver and in every task."""

    def __init__(self, options: SourceOptions) -> None:
        self._job = Job(options, uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """Write the rows of this task."""
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        done = Done(write(self._job, context.partitionId(), iterator))
        spare_what_is_loaded()
        return done


def refuse_overwriting(table: str) -> None:
    """Say what to do instead: nothing empties a table and fills it again as one step."""
    raise InvalidInputError(
        f'mode "overwrite": table {table} cannot be replaced as a whole; use .mode("append"), by which a row replaces '
        "the one with its primary key, or drop the table and make it anew"
    )

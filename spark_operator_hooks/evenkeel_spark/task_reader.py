"""Reads one partition in each task, all tasks at the same pin, as Arrow batches.

A `Split` has no preferred location, because Spark does not ask Python sources for one. `plan` and `read` do not depend
on Spark's planner, so another kind of data source can use them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from evenkeel_spark.prefetch import prefetch
from evenkeel_spark.query_pins import QueryPin, open_at_pin
from evenkeel_spark.source_options import SourceOptions
from evenkeel_spark.spark_types import batch_schema
from evenkeel_spark.worker_clients import freeze_loaded_objects, open_table

__all__ = ["Reader", "Scan", "Split", "plan", "read"]


class Scan(Struct, frozen=True):
    """What all tasks of a scan read."""

    options: SourceOptions
    columns: tuple[str, ...]
    filter: Any
    plan: str
    """The name of the pin if Spark runs no query, as with `df.rdd`."""


class Split(InputPartition):  # type: ignore[misc]
    """The partition that one task reads."""

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self.partition = partition


def plan(options: SourceOptions) -> list[Split]:
    """Return one split for each partition of a table."""
    return [Split(partition) for partition in range(open_table(options).partitions)]


def read(scan: Scan, split: Split) -> Generator[pa.RecordBatch]:
    """Yield the rows of a split."""
    table = open_table(scan.options)
    open_stream = partial(table.stream, split.partition, scan.columns, scan.filter)
    query_pin = QueryPin(f"spark-{_query() or scan.plan}", scan.options.pin_seconds)
    with open_at_pin(table, split.partition, query_pin, open_stream) as stream:
        yield from prefetch(stream, stop=stream.close)


def _query() -> str:
    """Return the id of the query of a task, which differs each time the query runs."""
    context = TaskContext.get()
    return (context.getLocalProperty("spark.sql.execution.query.id") or "") if context is not None else ""


class Reader(DataSourceReader):  # type: ignore[misc]
    """The reader that Spark calls on the driver and in every task."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        self._scan = scan
        self._schema = schema

    def partitions(self) -> list[Split]:
        """Return the splits of the table."""
        return plan(self._scan.options)

    def read(self, partition: Split) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split with exactly the schema that Spark expects."""
        shape = batch_schema(self._schema)
        with closing(read(self._scan, partition)) as batches:
            for batch in batches:
                freeze_loaded_objects()
                yield pa.RecordBatch.from_arrays(batch.columns, schema=shape)

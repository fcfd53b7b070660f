"""Reading: one task to each partition, all of them at one moment, rows as Arrow batches.

`Split` says what a task reads; where it had best run is not said yet, for Spark asks no Python source. `plan` and
`read` know nothing of Spark's planner, so that another way into it (one that does ask) can use them as they are.
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

from evenkeel_spark.ahead import read_ahead
from evenkeel_spark.clients import open_table, spare_what_is_loaded
from evenkeel_spark.moments import Moment, open_at
from evenkeel_spark.options import SourceOptions
from evenkeel_spark.types import batch_schema

__all__ = ["Reader", "Scan", "Split", "plan", "read"]


class Scan(Struct, frozen=True):
    """What is read, the same for all tasks."""

    options: SourceOptions
    columns: tuple[str, ...]
    filter: Any
    plan: str
    """What to call the moment where Spark runs no query, as under `df.rdd`."""


class Split(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self.partition = partition


def plan(options: SourceOptions) -> list[Split]:
    """Cut a table into what tasks read."""
    return [Split(partition) for partition in range(open_table(options).partitions)]


def read(scan: Scan, split: Split) -> Generator[pa.RecordBatch]:
    """Yield the rows of a split."""
    table = open_table(scan.options)
    ask = partial(table.stream, split.partition, scan.columns, scan.filter)
    moment = Moment(f"spark-{_query() or scan.plan}", scan.options.pin_seconds)
    with open_at(table, split.partition, moment, ask) as stream:
        yield from read_ahead(stream, stop=stream.close)


def _query() -> str:
    """The id of the query that a task belongs to: another one each time it runs."""
    context = TaskContext.get()
    return (context.getLocalProperty("spark.sql.execution.query.id") or "") if context is not None else ""


class Reader(DataSourceReader):  # type: ignore[misc]
    """What Spark asks, on the driver and in every task."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        self._scan = scan
        self._schema = schema

    def partitions(self) -> list[Split]:
        """Cut the table."""
        return plan(self._scan.options)

    def read(self, partition: Split) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows in the types that Spark expects to the letter."""
        shape = batch_schema(self._schema)
        with closing(read(self._scan, partition)) as batches:
            for batch in batches:
                spare_what_is_loaded()
                yield pa.RecordBatch.from_arrays(batch.columns, schema=shape)

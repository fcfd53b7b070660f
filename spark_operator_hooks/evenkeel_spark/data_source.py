"""The data source `evenkeel` that Spark calls."""

from __future__ import annotations

import uuid
from functools import cached_property

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from evenkeel_spark.source_options import SourceOptions, read_options
from evenkeel_spark.spark_types import check_readable, check_writable, spark_schema
from evenkeel_spark.task_reader import Reader, Scan
from evenkeel_spark.task_writer import Writer, refuse_overwriting
from evenkeel_spark.worker_clients import open_table

__all__ = ["EvenkeelDataSource"]


class EvenkeelDataSource(DataSource):  # type: ignore[misc]
    """A table, selected by its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `.format(`."""
        return "evenkeel"

    @cached_property
    def _given(self) -> SourceOptions:
        return read_options(self.options)

    def schema(self) -> StructType:
        """Return the table's columns, or those of the option `columns`."""
        return spark_schema(open_table(self._given).row_schema, self._given.columns)

    def reader(self, schema: StructType) -> Reader:
        """Return a reader of the columns of a schema, which is the table's or a user's."""
        table = open_table(self._given)
        check_readable(schema, table.row_schema)
        scan = Scan(self._given, tuple(schema.fieldNames()), self._given.filter, uuid.uuid4().hex)
        if scan.filter is not None:
            # An invalid condition fails here, and not in every task.
            table.stream(0, scan.columns[:1], scan.filter, limit=0).close()
        return Reader(scan, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """Return a writer of whole rows; overwriting is not supported."""
        if overwrite:
            refuse_overwriting(self._given.table)
        check_writable(schema, open_table(self._given).row_schema)
        return Writer(self._given)

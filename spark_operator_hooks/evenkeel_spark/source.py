"""The data source `evenkeel`."""

from __future__ import annotations

import uuid
from functools import cached_property

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from evenkeel_spark.clients import open_table
from evenkeel_spark.options import SourceOptions, read_options
from evenkeel_spark.reading import Reader, Scan
from evenkeel_spark.types import check_readable, check_writable, spark_schema
from evenkeel_spark.writing import Writer, refuse_overwriting

__all__ = ["EvenkeelDataSource"]


class EvenkeelDataSource(DataSource):  # type: ignore[misc]
    """A table, by its options."""

    @classmethod
    def name(cls) -> str:
        """What follows `.format(`."""
        return "evenkeel"

    @cached_property
    def _given(self) -> SourceOptions:
        return read_options(self.options)

    def schema(self) -> StructType:
        """The table's columns, or those that the option `columns` names."""
        return spark_schema(open_table(self._given).row_schema, self._given.columns)

    def reader(self, schema: StructType) -> Reader:
        """Read the columns of a schema: the table's, or some of them that a user wrote down."""
        table = open_table(self._given)
        check_readable(schema, table.row_schema)
        scan = Scan(self._given, tuple(schema.fieldNames()), self._given.filter, uuid.uuid4().hex)
        if scan.filter is not None:
            # What is wrong with a condition shows here, and not in every task.
            table.stream(0, scan.columns[:1], scan.filter, limit=0).close()
        return Reader(scan, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """Write whole rows; overwriting is refused."""
        if overwrite:
            refuse_overwriting(self._given.table)
        check_writable(schema, open_table(self._given).row_schema)
        return Writer(self._given)

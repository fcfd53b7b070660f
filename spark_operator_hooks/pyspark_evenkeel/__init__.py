"""Registers the data source: Spark looks for `DefaultSource` in every package called `pyspark_*`."""

from evenkeel_spark.data_source import EvenkeelDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""How Spark finds the data source by itself: it looks for `DefaultSource` in every package called `pyspark_*`."""

from evenkeel_spark.source import EvenkeelDataSource as DefaultSource

__all__ = ["DefaultSource"]

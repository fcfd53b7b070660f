"""Evenkeel's tables in Spark: `spark.read.format("evenkeel")` and `df.write.format("evenkeel")`.

    source      the data source: what Spark calls
    options     what users write after `.option(`
    types       columns, from one side to the other and back
    reading     one task to each partition
    columnar    columns instead of rows, and conditions that reach the stores, where Spark lets us
    moments     one moment for all tasks of a query
    ahead       rows read ahead of a consumer that takes its time
    writing     tokens by which an attempt recognises what another one wrote
    clients     one client in each of Spark's Python processes

Needs pyspark (`pip install 'evenkeel-operator[spark]'`), on the driver and on all executors.
"""

from evenkeel_spark.columnar import accelerate
from evenkeel_spark.source import EvenkeelDataSource

__all__ = ["EvenkeelDataSource", "accelerate"]

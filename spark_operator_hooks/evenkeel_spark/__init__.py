"""The Spark data source `evenkeel`: `spark.read.format("evenkeel")` and `df.write.format("evenkeel")`.

Needs pyspark (`pip install 'evenkeel-operator[spark]'`), on the driver and on all executors.

Modules:
    data_source       the data source that Spark calls
    source_options    the options of the data source
    spark_types       converts the schema of a table to Spark's types, and checks schemas of users
    task_reader       reads one partition in each task
    query_pins        pins that make all tasks of a query read the same rows
    prefetch          reads rows ahead of a slow consumer
    columnar_reads    column pruning, filter pushdown and columnar reads by a Java data source
    task_writer       writes the rows of each task once, by write tokens
    worker_clients    one client in each of Spark's Python processes
"""

from evenkeel_spark.columnar_reads import accelerate
from evenkeel_spark.data_source import EvenkeelDataSource

__all__ = ["EvenkeelDataSource", "accelerate"]

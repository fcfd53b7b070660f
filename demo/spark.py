"""PySpark: loads the rows, and reads them at the end to compare them with the acknowledged ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from demo.facts import Fingerprint
from demo.interrupts import deferred_interrupts, silence_py4j

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BackgroundSpark", "Rows", "background_spark"]

_COLUMNS: Final = ("id", "customer", "amount", "version")
_TASKS: Final = 8


class BackgroundSpark:
    """Spark, started and stopped on a background thread because both take seconds."""

    def __init__(self, directory: Path, pool: ThreadPoolExecutor, java: str) -> None:
        self._pool = pool
        self._context = pool.submit(_start, directory, java)
        self._stopped: Future[None] | None = None

    def __call__(self) -> SparkSession:
        """Wait for the start; return a session."""
        return _session(self._context.result())

    def stop(self) -> Future[None]:
        """Start to stop Spark."""
        if self._stopped is None:
            self._stopped = self._pool.submit(lambda: self._context.result().stop())
        return self._stopped


@contextmanager
def background_spark(directory: Path, *, java: str = "") -> Iterator[BackgroundSpark]:
    """Start Spark with these Java options, and stop it at the end."""
    with ThreadPoolExecutor(1, thread_name_prefix="spark") as pool:
        spark: BackgroundSpark | None = None
        try:
            with deferred_interrupts():  # or a Spark that has started would never be stopped
                spark = BackgroundSpark(directory, pool, java)
            yield spark
        finally:
            if spark is not None:
                spark.stop().result()


def _start(directory: Path, java: str) -> SparkContext:
    """Start a local Spark that needs no host name resolution; Java's messages go to a file."""
    silence_py4j()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    directory.mkdir(parents=True, exist_ok=True)
    with _errors_to(directory / "spark.log"):
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - reads the environment when it is imported

        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": java,
            "spark.local.dir": str(directory / "local"),
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        conf = SparkConf().setMaster("local[2, 4]").setAppName("evenkeel demo").setAll(list(settings.items()))
        context = SparkContext(conf=conf)
        context.setLogLevel("ERROR")
        return context


def _session(context: SparkContext) -> SparkSession:
    """Return a session for the calling thread, because data sources are registered per thread."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from evenkeel_spark import EvenkeelDataSource, accelerate  # noqa: PLC0415

    made = SparkSession(context)
    # Spark's own discovery fails if the path of Python contains a space.
    made.dataSource.register(EvenkeelDataSource)
    accelerate(made)
    return made


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of child processes to a file, because Java prints many messages at its start."""
    sys.stderr.flush()
    before = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class Rows:
    """The table's rows in Spark: the generated ones and those read back."""

    def __init__(self, spark: SparkSession, *, table: str, endpoints: Sequence[str], count: int) -> None:
        self._spark = spark
        self._table = table
        self._endpoints = ",".join(endpoints)
        self._count = count

    def load(self) -> None:
        """Write the initial rows."""
        frame = self._generated()
        frame.write.format("evenkeel").option("endpoints", self._endpoints).mode("append").save(self._table)

    def progress(self) -> tuple[int, int]:
        """Return the completed tasks of the active stages and their total; zero if Spark has stopped."""
        from py4j.protocol import Py4JError  # noqa: PLC0415 - installed with Spark only

        try:
            tracker = self._spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except (AttributeError, Py4JError, OSError):
            return 0, 0
        found = [stage for stage in stages if stage is not None]
        return sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)

    def found(self, *, without: Sequence[int]) -> DataFrame:
        """Return the rows in the table, from one consistent read."""
        frame = self._spark.read.format("evenkeel").option("endpoints", self._endpoints).load(self._table)
        return frame.where(~frame.id.isin(list(without))) if without else frame

    def expected(self, acknowledged: pa.Table, *, without: Sequence[int]) -> DataFrame:
        """Return the expected rows: the loaded ones, overwritten by the acknowledged ones."""
        written = self._spark.createDataFrame(acknowledged)
        frame = self._generated().join(written, "id", "left_anti").unionByName(written)
        return frame.where(~frame.id.isin(list(without))) if without else frame

    def _generated(self) -> DataFrame:
        return self._spark.range(0, self._count, 1, _TASKS).selectExpr(
            "id",
            "concat('customer-', id % 997) as customer",
            "cast((id % 100000) / 100 as decimal(12, 2)) as amount",
            "0L as version",
        )

    @staticmethod
    def fingerprint(frame: DataFrame) -> Fingerprint:
        """Count the rows and sum up their hashes."""
        hashed = f"xxhash64({', '.join(_COLUMNS)})"
        [row] = frame.selectExpr(
            "count(*) as rows", f"sum(cast({hashed} as decimal(20, 0))) as checksum", "sum(amount) as amount"
        ).collect()
        return Fingerprint(row.rows, int(row.checksum or 0), str(row.amount))

    @staticmethod
    def differing(expected: DataFrame, found: DataFrame) -> int:
        """Return how many rows are on one side only."""
        one, other = expected.select(*_COLUMNS), found.select(*_COLUMNS)
        return int(one.exceptAll(other).count() + other.exceptAll(one).count())

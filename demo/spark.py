"""A million rows in by PySpark, and all rows out again, to be counted and compared with what was acknowledged."""

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
from demo.interrupts import hush_py4j

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Rows", "Starting", "starting"]

_COLUMNS: Final = ("id", "customer", "amount", "version")
_TASKS: Final = 8


class Starting:
    """Spark, which takes a while to start and to stop: both on a thread, while other things are done."""

    def __init__(self, directory: Path, pool: ThreadPoolExecutor, java: str) -> None:
        self._pool = pool
        self._context = pool.submit(_start, directory, java)
        self._stopped: Future[None] | None = None

    def __call__(self) -> SparkSession:
        """A session, when it has started."""
        return _session(self._context.result())

    def stop(self) -> Future[None]:
        """Begin to stop it."""
        if self._stopped is None:
            self._stopped = self._pool.submit(lambda: self._context.result().stop())
        return self._stopped


@contextmanager
def starting(directory: Path, *, java: str = "") -> Iterator[Starting]:
    """Start Spark, with options for Java. It is stopped in the end."""
    with ThreadPoolExecutor(1, thread_name_prefix="spark") as pool:
        spark = Starting(directory, pool, java)
        try:
            yield spark
        finally:
            spark.stop().result()


def _start(directory: Path, java: str) -> SparkContext:
    """A Spark on this machine that asks nobody for the host's name; Java's messages go to a file."""
    hush_py4j()
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
    """A session of the thread that asks: only there are data sources found that are registered with it."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from evenkeel_spark import EvenkeelDataSource, accelerate  # noqa: PLC0415

    made = SparkSession(context)
    # Spark finds it by itself, but not where the path of Python has a space.
    made.dataSource.register(EvenkeelDataSource)
    accelerate(made)
    return made


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Whatever is started meanwhile writes its errors there: Java greets at length."""
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
    """The table's rows in Spark: those that are loaded, and those that are found."""

    def __init__(self, spark: SparkSession, *, table: str, endpoints: Sequence[str], count: int) -> None:
        self._spark = spark
        self._table = table
        self._endpoints = ",".join(endpoints)
        self._count = count

    def load(self) -> None:
        """Write the rows to begin with."""
        frame = self._generated()
        frame.write.format("evenkeel").option("endpoints", self._endpoints).mode("append").save(self._table)

    def progress(self) -> tuple[int, int]:
        """Tasks of the jobs under way that are done, and all of them; none where Spark was stopped meanwhile."""
        from py4j.protocol import Py4JError  # noqa: PLC0415  only where Spark is

        try:
            tracker = self._spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except (AttributeError, Py4JError, OSError):
            return 0, 0
        found = [stage for stage in stages if stage is not None]
        return sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)

    def found(self, *, without: Sequence[int]) -> DataFrame:
        """What is in the table, at one moment."""
        frame = self._spark.read.format("evenkeel").option("endpoints", self._endpoints).load(self._table)
        return frame.where(~frame.id.isin(list(without))) if without else frame

    def expected(self, acknowledged: pa.Table, *, without: Sequence[int]) -> DataFrame:
        """What must be in it: what was loaded, and over it what was acknowledged since."""
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
        """Count rows and add up their hashes."""
        hashed = f"xxhash64({', '.join(_COLUMNS)})"
        [row] = frame.selectExpr(
            "count(*) as rows", f"sum(cast({hashed} as decimal(20, 0))) as checksum", "sum(amount) as amount"
        ).collect()
        return Fingerprint(row.rows, int(row.checksum or 0), str(row.amount))

    @staticmethod
    def differing(expected: DataFrame, found: DataFrame) -> int:
        """How many rows are on one side alone."""
        one, other = expected.select(*_COLUMNS), found.select(*_COLUMNS)
        return int(one.exceptAll(other).count() + other.exceptAll(one).count())

"""Spark reads and writes four million rows of a table on three stores, compared with Parquet files of the same rows.

Both sides run alternately in one local Spark, with columnar reads. A scan sums up hashes of all columns, so that every
value is read. A write ends when all rows are acknowledged, which means synced on two of three stores; Parquet has one
copy, not synced.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench._turns import median_row
from bench.report import Row
from demo.cluster import NAME, DemoCluster
from demo.spark import background_spark
from evenkeel.cli import resource_commands
from evenkeel.model.resource_loading import load_yaml

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 4_000_000
STORES: Final = 3
_TASKS: Final = 8
_SCANS: Final = 5
_WRITES: Final = 3
_TIMEOUT: Final = 300.0
_TABLE: Final = """\
apiVersion: evenkeel.dev/v1alpha1
kind: Table
metadata: {name: numbers}
spec:
  storeCluster: main
  partitions: 8
  replicas: 3
  schema:
    columns:
      - {name: id, type: int64, nullable: false}
      - {name: amount, type: float64}
      - {name: customer, type: string}
      - {name: quantity, type: int32}
    primaryKey: [id]
"""


def rows(count: int = ROWS) -> Iterator[Row]:
    """Yield a row for writes, then one for scans of the rows written last."""
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as name:
        folder = Path(name)
        up = ("--stores", str(STORES))
        with background_spark(folder / "spark") as spark, DemoCluster(folder / "cluster", up=up) as cluster:
            sides = _Sides(spark(), _endpoints(cluster), folder / "numbers.parquet", count)
            yield sides.measured("writes", sides.write, sides.write_parquet, times=_WRITES)
            yield sides.measured("scans", sides.scan, sides.scan_parquet, times=_SCANS, target="; target >= 0.65")


def _endpoints(cluster: DemoCluster) -> str:
    [table] = load_yaml(_TABLE, "the bench's table")
    cluster.do(cluster.session.resources.apply(table))
    cluster.verb(lambda found: resource_commands.wait_for(found, "table/numbers", "Ready", within=_TIMEOUT))
    return ",".join(cluster.verb(lambda found: found.endpoints(NAME)))


class _Sides:
    """The same rows in the table and in files."""

    def __init__(self, spark: SparkSession, endpoints: str, parquet: Path, count: int) -> None:
        self._spark = spark
        self._endpoints = endpoints
        self._parquet = str(parquet)
        self._count = count

    def measured(
        self, what: str, ours: Callable[[], None], theirs: Callable[[], None], *, times: int, target: str = ""
    ) -> Row:
        """Measure both sides alternately; the first window of each is a warm-up."""
        pairs = [(self._rate(ours), self._rate(theirs)) for _ in range(times + 1)][1:]
        case = f"{what} of {self._count:,} rows on {STORES} stores, vs Parquet{target}"
        return median_row("spark", case, "rows/s", pairs)

    def _rate(self, work: Callable[[], None]) -> float:
        began = time.perf_counter()
        work()
        return self._count / (time.perf_counter() - began)

    def write(self) -> None:
        writer = self._generated().write.format("evenkeel").option("endpoints", self._endpoints)
        writer.mode("append").save("numbers")

    def write_parquet(self) -> None:
        self._generated().write.mode("overwrite").parquet(self._parquet)

    def scan(self) -> None:
        self._summed(self._spark.read.format("evenkeel").option("endpoints", self._endpoints).load("numbers"))

    def scan_parquet(self) -> None:
        self._summed(self._spark.read.parquet(self._parquet))

    def _generated(self) -> DataFrame:
        return self._spark.range(0, self._count, 1, _TASKS).selectExpr(
            "id", "id / 7 as amount", "concat('customer-', id % 5000) as customer", "cast(id % 100 as int) as quantity"
        )

    def _summed(self, frame: DataFrame) -> None:
        hashed = "sum(cast(xxhash64(id, amount, customer, quantity) as decimal(20, 0)))"
        [row] = frame.selectExpr("count(*) as rows", f"{hashed} as checksum").collect()
        assert row.rows == self._count, f"found {row.rows} of {self._count} rows"

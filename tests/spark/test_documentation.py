"""The examples and commands of docs/spark.md run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.repository.tree import ROOT, shown
from tests.spark.stores import Stores
from tests.store.serving import ORDERS

PAGE = ROOT / "docs" / "spark.md"
BLOCKS = shown(PAGE, "python")
COMMANDS = shown(PAGE, "bash")
JOB = """
from pyspark.sql import SparkSession
import evenkeel_spark
spark = SparkSession.builder.master("local[1]").getOrCreate()
spark.dataSource.register(evenkeel_spark.EvenkeelDataSource)
try:
    spark.read.format("evenkeel").load("orders").collect()
except Exception as error:
    print("error:", error)
print("workers have", spark.range(3).rdd.map(lambda _: __import__("evenkeel_spark").__name__).distinct().collect())
"""


@pytest.mark.parametrize("spark", ["columns"], indirect=True)
def test_examples_run(spark: SparkSession, stores: Stores) -> None:
    """Each block of the page runs by itself on an empty table."""
    assert BLOCKS
    for number, block in enumerate(BLOCKS):
        stores.table("orders", ORDERS)
        exec(compile(block, f"{PAGE}, block {number}", "exec"), {"spark": spark, "ENDPOINTS": stores.endpoints})
        stores.drop("orders")


def test_commands_run(tmp_path: Path) -> None:
    """The commands run a program in Spark, with this Python for its workers, without a resolvable host name."""
    [commands] = COMMANDS
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "job.py").write_text(JOB)
    path, home = f"{Path(sys.executable).parent}:{os.environ['PATH']}", pyspark.__path__[0]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env={**environment, "PATH": path, "SPARK_HOME": home},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "workers have ['evenkeel_spark']" in done.stdout, done.stdout
    assert "error:" in done.stdout

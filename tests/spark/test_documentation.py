"""What docs/spark.md shows is what happens."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

from tests.repository.tree import ROOT
from tests.spark.stores import Stores
from tests.store.serving import ORDERS

PAGE = ROOT / "docs" / "spark.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("spark", ["columns"], indirect=True)
def test_examples_run(spark: SparkSession, stores: Stores) -> None:
    """Each block of the page, by itself, on an empty table."""
    assert BLOCKS
    for number, block in enumerate(BLOCKS):
        stores.table("orders", ORDERS)
        exec(compile(block, f"{PAGE}, block {number}", "exec"), {"spark": spark, "ENDPOINTS": stores.endpoints})
        stores.drop("orders")

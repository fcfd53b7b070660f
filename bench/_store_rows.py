"""Table and batches of the store benchmarks, and the plain DuckDB they are compared with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from evenkeel.rows.row_schema import ColumnDef, RowSchema, arrow_schema

__all__ = ["KEYS", "SCHEMA", "batches_of", "open_plain", "upsert_plain"]

SCHEMA: Final = RowSchema(
    (
        ColumnDef("id", "int64", False),
        ColumnDef("amount", "float64"),
        ColumnDef("customer", "string"),
        ColumnDef("quantity", "int32"),
    ),
    ("id",),
    ("id",),
)
KEYS: Final = 1_000_000


def batches_of(size: int, count: int, *, first: int = 0) -> list[pa.RecordBatch]:
    """Return batches of random rows from a range of a million keys, without duplicate keys in a batch."""
    rng = np.random.default_rng(7)
    names = pa.array([f"customer-{number}" for number in range(5000)])
    made = []
    for _ in range(count):
        ids = first + rng.permutation(KEYS)[:size].astype(np.int64)
        columns = [
            pa.array(ids),
            pa.array(rng.random(size)),
            names.take(pa.array(ids % 5000)),
            pa.array(ids.astype(np.int32)),
        ]
        made.append(pa.RecordBatch.from_arrays(columns, schema=arrow_schema(SCHEMA)))
    return made


def open_plain(directory: Path) -> duckdb.DuckDBPyConnection:
    """Open a DuckDB with the same table."""
    con = duckdb.connect(str(directory / "plain.duckdb"))
    con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, amount DOUBLE, customer VARCHAR, quantity INTEGER)")
    return con


def upsert_plain(con: duckdb.DuckDBPyConnection, batches: Sequence[pa.RecordBatch]) -> float:
    """Upsert batches in one transaction each; return the seconds it took."""
    started = time.perf_counter()
    for batch in batches:
        con.register("incoming", pa.Table.from_batches([batch]))
        con.execute("INSERT OR REPLACE INTO t SELECT * FROM incoming")
    return time.perf_counter() - started

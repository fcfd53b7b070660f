"""Python values are converted to Arrow exactly, or rejected with the column and the reason."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from evenkeel.client.row_input import key_batches, row_batches
from evenkeel.errors import RowsError, UnknownColumnError
from evenkeel.rows.row_schema import ColumnDef, RowSchema

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = RowSchema(
    (
        ColumnDef("id", "int64", False),
        ColumnDef("amount", "decimal(12,2)"),
        ColumnDef("at", "timestamp"),
        ColumnDef("day", "date"),
        ColumnDef("ratio", "float32"),
        ColumnDef("size", "float64"),
    ),
    ("id",),
    ("id",),
)


@pytest.mark.parametrize(
    ("column", "given", "kept"),
    [
        ("id", 2.0, 2),
        ("id", np.float32(2.0), 2),
        ("id", Decimal("2.00"), 2),
        ("id", np.int8(2), 2),
        ("amount", 2, Decimal("2.00")),
        ("day", date(2026, 1, 31), date(2026, 1, 31)),
        ("at", NOON, NOON),
        ("ratio", float("inf"), float("inf")),
        ("ratio", None, None),
        ("size", 1e300, 1e300),
        ("size", 2, 2.0),
    ],
)
def test_equal_values_of_other_types(column: str, given: Any, kept: Any) -> None:
    """Values of other Python or NumPy types are converted if nothing is lost."""
    [batch] = row_batches([{"id": 1} | {column: given}], SCHEMA)
    assert batch.to_pylist()[0][column] == kept


@pytest.mark.parametrize(
    ("column", "given", "words"),
    [
        ("id", 1.5, "1.5 is not an integer"),
        ("id", np.float32(1.5), "1.5 is not an integer"),
        ("id", Decimal("1.5"), "1.5 is not an integer"),
        ("id", float("nan"), "nan is not an integer"),
        ("id", np.True_, "True is a boolean"),
        ("size", True, "True is a boolean"),
        ("at", 5, "5 is a number; use a datetime"),
        ("at", 1.7, "1.7 is a number; use a datetime"),
        ("at", datetime(2026, 1, 31, 12), "the datetime has no time zone"),
        ("day", 5, "5 is a number; use a date"),
        ("day", NOON, "2026-01-31 12:00:00.00:00 is a datetime, not a date; use its .date"),
        ("ratio", 1e300, "a number is too large for float"),
    ],
)
def test_values_that_arrow_would_change(column: str, given: Any, words: str) -> None:
    """Values that Arrow would silently round or truncate are rejected, also after valid rows."""
    with pytest.raises(RowsError, match=rf"column {column} is of type .*: {words}"):
        row_batches([{"id": 1}, {"id": 2} | {column: given}], SCHEMA)


def test_keys_that_arrow_would_change() -> None:
    """Otherwise `delete` would delete another row."""
    with pytest.raises(RowsError, match=r"1\.5 is not an integer"):
        key_batches([1, 1.5], SCHEMA)


def test_columns_without_a_name() -> None:
    """A dict key that is not text is an unknown column."""
    with pytest.raises(UnknownColumnError, match="no column 1; there are: id, amount"):
        row_batches([{1: 2}], SCHEMA)

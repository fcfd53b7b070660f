"""The JSON notation of values in defaults, filters and keys.

Numbers and booleans are JSON numbers and booleans; all other values are text: dates as `2026-01-31`, timestamps with
their offset, decimals as text so that they are not rounded, bytes in hexadecimal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from evenkeel.rows.row_schema import ColumnDef, Default, arrow_type

__all__ = ["FIRST_DAY", "FIRST_INSTANT", "LAST_DAY", "LAST_INSTANT", "default_scalar", "from_json", "to_json"]

FIRST_DAY: Final = date(1, 1, 1)
LAST_DAY: Final = date(9999, 12, 31)
FIRST_INSTANT: Final = datetime(1, 1, 1, tzinfo=UTC)
LAST_INSTANT: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def from_json(type_name: str, value: Default) -> Any:
    """Return the Python value of a JSON value; `ValueError` describes the allowed values."""
    if value is None:
        return None
    allowed, convert = _READERS.get(type_name.partition("(")[0], _READERS["int"])
    try:
        made = convert(value)
        return pa.scalar(made, arrow_type(type_name)).as_py() if made is not None else None
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise ValueError(f"{value!r} is not {allowed} for a column of type {type_name}") from error


def to_json(value: Any) -> Default:
    """Return the JSON notation of a Python, NumPy or Arrow value; `ValueError` if it has none."""
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone; add one")
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"no column type holds a value of type {type(value).__name__}")


def default_scalar(column: ColumnDef) -> pa.Scalar:
    """Return the default of a column as an Arrow scalar."""
    return pa.scalar(from_json(column.type, column.default), arrow_type(column.type))


def _boolean(value: Default) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _integer(value: Default) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    return value


def _number(value: Default) -> float:
    if isinstance(value, str) and value not in ("nan", "inf", "-inf"):
        raise ValueError
    if value is None or isinstance(value, bool):
        raise ValueError
    return float(value)


def _decimal(value: Default) -> Decimal:
    if isinstance(value, bool | float) or value is None:
        raise ValueError
    made = Decimal(value)
    if not made.is_finite():
        raise ValueError
    return made


def _text(value: Default) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _instant(value: Default) -> datetime:
    made = datetime.fromisoformat(_text(value))
    if made.tzinfo is None:
        raise ValueError
    return made


_READERS: Final[dict[str, tuple[str, Callable[[Default], Any]]]] = {
    "bool": ("true or false", _boolean),
    "int": ("an integer in range", _integer),
    "float32": ("a number", _number),
    "float64": ("a number", _number),
    "decimal": ("a decimal number in text, in range", _decimal),
    "string": ("text", _text),
    "bytes": ("text of hexadecimal digits", lambda value: bytes.fromhex(_text(value))),
    "date": ("a date like 2026-01-31", lambda value: date.fromisoformat(_text(value))),
    "timestamp": ("a timestamp like 2026-01-31T12:00:00Z", _instant),
}

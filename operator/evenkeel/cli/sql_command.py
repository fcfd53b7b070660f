"""`evenkeel sql`: a query over tables, its answer printed."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import pyarrow as pa

from evenkeel.cli.output import Output
from evenkeel.cli.place import Place
from evenkeel.cli.printing import print_json, print_table
from evenkeel.cli.store_client import client_of
from evenkeel.rows.row_values import to_json

__all__ = ["print_found", "run_query"]


def run_query(query: str, place: Place, store_cluster: str, output: Output) -> None:
    """Run it, and print its rows."""
    with client_of(place, store_cluster) as client:
        found = client.sql(query)
    print_found(found, output)


def print_found(found: pa.Table, output: Output) -> None:
    """Print rows; two columns may have the same name, as in `select a.id, b.id`."""
    names = found.schema.names
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    if output is Output.JSON:
        keys = _apart(names)
        print_json([{key: _plain(value) for key, value in zip(keys, row, strict=True)} for row in rows])
        return
    print_table([name.upper() for name in names], [["" if value is None else value for value in row] for row in rows])


def _apart(names: list[str]) -> list[str]:
    """Number names that were there before, as DuckDB does: an object has each only once."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        found[next(key for key in itertools.chain([name], numbered) if key not in found)] = None
    return list(found)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    try:
        return to_json(value)
    except ValueError:
        return value.isoformat() if isinstance(value, datetime) else str(value)

"""`sql`: run a query over tables and print its rows."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import pyarrow as pa

from evenkeel.cli.options import Output
from evenkeel.cli.store_client import connect_client
from evenkeel.cli.target_cluster import Target
from evenkeel.cli.terminal_output import print_json, print_table
from evenkeel.rows.row_values import to_json

__all__ = ["print_rows", "run_query"]


def run_query(query: str, target: Target, store_cluster: str, output: Output) -> None:
    """Run a query and print its rows."""
    with connect_client(target, store_cluster) as client:
        found = client.sql(query)
    print_rows(found, output)


def print_rows(found: pa.Table, output: Output) -> None:
    """Print rows; two columns may have the same name, as in `select a.id, b.id`."""
    names = found.schema.names
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    if output is Output.JSON:
        keys = _unique(names)
        print_json([{key: _plain(value) for key, value in zip(keys, row, strict=True)} for row in rows])
        return
    print_table([name.upper() for name in names], [["" if value is None else value for value in row] for row in rows])


def _unique(names: list[str]) -> list[str]:
    """Number repeated names, as DuckDB does, because the keys of a JSON object are unique."""
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

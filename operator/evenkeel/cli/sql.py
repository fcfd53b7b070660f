"""`evenkeel sql`: a query over tables, its answer printed."""

from __future__ import annotations

from typing import Any

from evenkeel.cli.clients import client_of
from evenkeel.cli.output import Output
from evenkeel.cli.place import Place
from evenkeel.cli.printing import print_json, print_table
from evenkeel.rows.values import to_json

__all__ = ["run_query"]


def run_query(query: str, place: Place, store_cluster: str, output: Output) -> None:
    """Run it, and print its rows."""
    with client_of(place, store_cluster) as client:
        found = client.sql(query)
    if output is Output.JSON:
        print_json([{name: _plain(value) for name, value in row.items()} for row in found.to_pylist()])
        return
    names = found.schema.names
    rows = [["" if value is None else value for value in row.values()] for row in found.to_pylist()]
    print_table([name.upper() for name in names], rows)


def _plain(value: Any) -> Any:
    try:
        return to_json(value)
    except ValueError:
        return str(value)

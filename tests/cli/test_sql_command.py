"""Printing the rows of a query."""

from __future__ import annotations

import json
from datetime import datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from evenkeel.cli.options import Output
from evenkeel.cli.sql_command import print_rows

Capture = pytest.CaptureFixture[str]


def test_columns_of_the_same_name(capsys: Capture) -> None:
    """Equal column names, as after a join, are all printed, and numbered as JSON keys."""
    found = pa.table([[1], [2], [3]], names=["id", "id", "id_1"])
    print_rows(found, Output.TABLE)
    assert capsys.readouterr().out == "ID   ID   ID_1\n1    2    3\n"
    print_rows(found, Output.JSON)
    assert json.loads(capsys.readouterr().out) == [{"id": 1, "id_1": 2, "id_1_1": 3}]


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ([Decimal("1.50"), None], ["1.50", None]),
        ({"a": {"b": [b"\xff"]}}, {"a": {"b": ["ff"]}}),
        (datetime(2026, 1, 31, 12), "2026-01-31T12:00:00"),
        (time(12, 30), "12:30:00"),
    ],
)
def test_values_as_data(capsys: Capture, value: Any, printed: Any) -> None:
    """Lists and structs keep their structure in JSON."""
    print_rows(pa.table({"x": [value]}), Output.JSON)
    assert json.loads(capsys.readouterr().out) == [{"x": printed}]


def test_no_rows(capsys: Capture) -> None:
    """Without rows, the column names are printed."""
    print_rows(pa.table({"x": pa.array([], pa.int64())}), Output.TABLE)
    assert capsys.readouterr().out == "X\n"
    print_rows(pa.table({"x": pa.array([], pa.int64())}), Output.JSON)
    assert json.loads(capsys.readouterr().out) == []


def test_control_characters_are_escaped(capsys: Capture) -> None:
    """Rows cannot send escape sequences to the terminal of a reader."""
    print_rows(pa.table({"a\x1b[2J": ["\x1b]0;title\x07\rred\x9b31m", "two\nlines"]}), Output.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        r"A\x1b[2J",
        r"\x1b]0;title\x07\x0dred\x9b31m",
        "two",
        "lines",
    ]

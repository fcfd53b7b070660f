"""What a query found, printed."""

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
    """As a join has them: none is lost, and objects have a key for each."""
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
    """Lists and structs stay what they are."""
    print_rows(pa.table({"x": [value]}), Output.JSON)
    assert json.loads(capsys.readouterr().out) == [{"x": printed}]


def test_no_rows(capsys: Capture) -> None:
    """The columns are shown all the same."""
    print_rows(pa.table({"x": pa.array([], pa.int64())}), Output.TABLE)
    assert capsys.readouterr().out == "X\n"
    print_rows(pa.table({"x": pa.array([], pa.int64())}), Output.JSON)
    assert json.loads(capsys.readouterr().out) == []


def test_rows_do_not_speak_to_the_terminal(capsys: Capture) -> None:
    """Whoever may write rows could else write on the screens of those who read them."""
    print_rows(pa.table({"a\x1b[2J": ["\x1b]0;title\x07\rred\x9b31m", "two\nlines"]}), Output.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        r"A\x1b[2J",
        r"\x1b]0;title\x07\x0dred\x9b31m",
        "two",
        "lines",
    ]

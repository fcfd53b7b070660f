"""Log output: one line per event, as JSON or readable text."""

from __future__ import annotations

import json
import logging

import pytest

from evenkeel.runtime.log_context import add_log_fields, log_context
from evenkeel.runtime.log_setup import set_up_logs


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is an object with time, level, store, message and extra fields."""
    set_up_logs(level="info", form="json", store="s1")
    logging.getLogger("x").info("%d replicas", 3, extra={"volume": "v"})
    logging.getLogger("x").debug("not this")
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert said.pop("timestamp").endswith("Z")
    assert said == {"event": "3 replicas", "level": "info", "store": "s1", "volume": "v"}


def test_a_traceback_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback is part of its event's line."""
    set_up_logs(level="info", form="json", store="s1")
    try:
        raise KeyError("x")
    except KeyError:
        logging.getLogger("x").exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "Traceback" in json.loads(line)["exception"]


def test_console_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Console lines are readable, without colours in a pipe."""
    set_up_logs(level="warning", form="console", store="s1")
    logging.getLogger("x").warning("the disk is full")
    said = capsys.readouterr().err
    assert "the disk is full" in said
    assert "store=s1" in said
    assert "\x1b" not in said


def test_lines_have_the_fields_of_their_context(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines inside a context have its fields, and their own fields take precedence."""
    set_up_logs(level="info", form="json", operator="one")
    with log_context(store_cluster="shop/main"):
        with log_context(table="orders"):
            add_log_fields(plan=3)
            logging.getLogger("x").info("in the middle", extra={"partition": 7})
        logging.getLogger("x").info("behind it")
    logging.getLogger("x").info("elsewhere")
    middle, behind, elsewhere = map(json.loads, capsys.readouterr().err.splitlines())
    assert {key: middle[key] for key in ("operator", "store_cluster", "table", "partition", "plan")} == {
        "operator": "one", "store_cluster": "shop/main", "table": "orders", "partition": 7, "plan": 3,
    }  # fmt: skip
    assert (behind["store_cluster"], "table" in behind, "plan" in behind) == ("shop/main", False, False)
    assert "store_cluster" not in elsewhere

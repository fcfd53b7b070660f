"""Terminal and plain output."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from demo.facts import Verdict
from demo.screen import Screen, describe
from evenkeel.cli.terminal_output import print_line
from tests.demo.facts import OPERATIONS, SAMPLES


def test_steps_are_recorded() -> None:
    """Steps are recorded with begin and end; a pipe gets plain text only."""
    output = io.StringIO()
    screen = Screen(Console(file=output), began=time.monotonic())
    with screen.step("Drain a store", disturbs=True):
        screen.say("    $ evenkeel drain")
    screen.verdicts([Verdict("rows are there", True, "[all]"), Verdict("rows are right", False, "none")])
    [step] = screen.steps
    assert (step.title, step.disturbs) == ("Drain a store", True)
    assert 0 <= step.began <= step.ended
    lines = output.getvalue().splitlines()
    assert lines[:2] == ["==> Drain a store", "    $ evenkeel drain"]
    assert lines[3:] == ["  ok    rows are there: [all]", "  FAIL  rows are right: none"]


def test_terminal_has_colour() -> None:
    """A terminal gets colours and a live view."""
    output = io.StringIO()
    screen = Screen(Console(file=output, force_terminal=True), began=time.monotonic())
    screen.watch(lambda: SAMPLES[0], lambda: OPERATIONS)
    with screen.step("Drain a store"):
        pass
    assert "\x1b[" in output.getvalue()
    assert "replicas" in output.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_output_of_commands_is_captured(capsys: pytest.CaptureFixture[str], terminal: bool) -> None:
    """Printed output of commands goes through the screen."""
    output = io.StringIO()
    screen = Screen(Console(file=output, force_terminal=terminal), began=time.monotonic())
    screen.watch(lambda: SAMPLES[0], lambda: OPERATIONS)
    with screen.step("Drain a store"):
        print_line("store main-5 is empty")
    assert "    store main-5 is empty\n" in output.getvalue()
    assert capsys.readouterr().out == ""


def test_describe() -> None:
    """The summary has moves, replicas, leaders and latencies."""
    words = list(describe(SAMPLES[1], OPERATIONS))
    assert words == [
        "3 partitions changing",
        "replicas 4 2",
        "leaders 4 0",
        "writes 4/s p50 10 ms p99 30 ms",
        "reads 2/s p50 1 ms p99 1 ms",
    ]

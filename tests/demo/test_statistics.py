"""Percentiles, windows and counters."""

from __future__ import annotations

import pytest

from demo.facts import Operation
from demo.report import QUIET, latency_rows
from demo.statistics import by_second, disturbed, growth, latency, moves_done, quantile, quiet, within
from tests.demo.facts import OPERATIONS, SAMPLES, STEPS


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, 0.0),
        ([3.0], 0.99, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 102)], 0.99, 100.0),
        ([1.0, 2.0], 0.0, 1.0),
    ],
)
def test_quantiles(values: list[float], share: float, expected: float) -> None:
    """The quantile is the smallest value that this share of the values does not exceed."""
    assert quantile(values, share) == expected


def test_latency_before_and_during() -> None:
    """An operation belongs to the step in which it began."""
    before = latency(within(OPERATIONS, quiet(STEPS, title=QUIET)), "write")
    during = latency(within(OPERATIONS, disturbed(STEPS)), "write")
    assert (before.count, before.p50, before.p99) == (10, 0.010, 0.010)
    assert (during.count, during.p50, during.longest) == (10, 0.030, 0.030)
    assert next(iter(latency_rows(STEPS, OPERATIONS))) == ("writes before", "10", "10.0 ms", "10.0 ms", "10.0 ms")


def test_by_second() -> None:
    """Each second with operations has one value."""
    operations = [Operation("read", 0.1, 1.0), Operation("read", 0.9, 3.0), Operation("read", 2.0, 5.0)]
    assert by_second([*operations, Operation("write", 1.0, 9.0)], "read", max) == [(0.5, 3.0), (2.5, 5.0)]


def test_counters_that_restart() -> None:
    """A restarted process counts from zero; one without a reading keeps its total."""
    readings = [{"a": 5, "b": 1}, {"a": 7}, {"a": 2, "b": 1}, {"a": 4, "b": 3}]
    assert growth(readings) == [6, 8, 10, 14]


def test_moves_done() -> None:
    """Added and removed replicas both count as moves."""
    assert moves_done(SAMPLES) == [(0, 0.0), (12, 2.0), (19, 4.0)]

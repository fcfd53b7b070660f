"""Quantities, durations, column types, conditions and progress."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from evenkeel.model.columns import Column, column_type
from evenkeel.model.conditions import Condition, Progress, Reason, merge_conditions, timestamp
from evenkeel.model.quantities import Duration, Quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("10", 10),
        ("10Gi", 10 * 2**30),
        ("1.5Gi", Decimal("1.5") * 2**30),
        ("500m", Decimal("0.5")),
        ("2k", 2000),
        ("3E", 3 * 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("7n", Decimal("7e-9")),
    ],
)
def test_quantity(text: str, value: Decimal | int) -> None:
    """A quantity has Kubernetes' value and its own text."""
    assert Quantity(text).value == value
    assert Quantity(text) == text


def test_quantity_rounds_up() -> None:
    """Whole units are rounded up, as Kubernetes does."""
    assert (Quantity("500m").units, Quantity("1001m").units) == (1, 2)


@pytest.mark.parametrize("text", ["", "Gi", "-1", "1 Gi", "1GiB", "1kb", "1.", ".5", "1e", "1" * 40, "١"])  # noqa: RUF001
def test_bad_quantity(text: str) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match="is not a quantity such as"):
        Quantity(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("10m", 600), ("1h30m", 5400), ("7d", 604800), ("1.5h", 5400)]
)
def test_duration(text: str, seconds: float) -> None:
    """A duration has its seconds and its own text."""
    assert Duration(text).seconds == seconds
    assert Duration(text) == text


@pytest.mark.parametrize("text", ["", "10", "10 m", "m", "-1s", "1w", "1h 30m", "1s" * 20])
def test_bad_duration(text: str) -> None:
    """A unit is required, and nothing else is understood."""
    with pytest.raises(ValueError, match="is not a duration with its unit"):
        Duration(text)


@pytest.mark.parametrize(
    ("name", "arrow", "duckdb"),
    [
        ("bool", "bool", "BOOLEAN"),
        ("int8", "int8", "TINYINT"),
        ("float32", "float", "FLOAT"),
        ("string", "string", "VARCHAR"),
        ("timestamp", "timestamp[us, tz=UTC]", "TIMESTAMP WITH TIME ZONE"),
        ("decimal(38,38)", "decimal128(38, 38)", "DECIMAL(38,38)"),
    ],
)
def test_column_type(name: str, arrow: str, duckdb: str) -> None:
    """A type has names in Arrow and DuckDB."""
    kind = column_type(name)
    assert (kind.arrow, kind.duckdb) == (arrow, duckdb)


@pytest.mark.parametrize(
    "name", ["int", "Int64", "uint8", "decimal", "decimal(39,1)", "decimal(2,3)", "decimal(0,0)", ""]
)
def test_unknown_column_type(name: str) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match="is not one of bool, int8"):
        column_type(name)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("bool", [True, False], [0, "true"]),
        ("int8", [-128, 127], [128, -129, 1.5, "1", True]),
        ("int64", [2**63 - 1], [2**63]),
        ("float64", [1, 1.5], ["1.5", True]),
        ("string", ["", "x"], [1, ["x"]]),
        ("bytes", ["", "00ff"], ["0", "zz"]),
        ("date", ["2024-02-29"], ["2023-02-29", "wall_clock"]),
        ("timestamp", ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00+02:00"], ["2024-01-01T00:00:00", "now"]),
        ("decimal(4,2)", ["99.99", "-1", "1.10"], ["100", "0.001", "NaN", "Infinity", "1e999999999", 1.5]),
        ("decimal(38,0)", ["9" * 38], ["9" * 39, "1" + "0" * 100]),
    ],
)
def test_defaults(kind: str, good: list[object], bad: list[object]) -> None:
    """A column's default is a value of its type."""
    for value in good:
        assert Column(name="c", type=kind, default=value).default == value
    for value in bad:
        with pytest.raises(ValueError, match=f"a value of type {kind.replace('(', '.').replace(')', '.')}"):
            Column(name="c", type=kind, default=value)


NOON = "2024-01-01T12:00:00Z"
LATER = "2024-01-01T13:00:00Z"


def ready(status: str, *, at: str, reason: Reason = Reason.AS_EXPECTED) -> Condition:
    return Condition(type="Ready", status=status, reason=reason, last_transition_time=at)


def test_transition_time_follows_status_alone() -> None:
    """A new reason keeps the time of the last transition; a new status does not."""
    before = ready("True", at=NOON)
    [same] = merge_conditions([before], [ready("True", at=LATER, reason=Reason.REBALANCING)])
    assert (same.last_transition_time, same.reason) == (NOON, "Rebalancing")
    [other] = merge_conditions([before], [ready("False", at=LATER)])
    assert other.last_transition_time == LATER


def test_conditions_of_other_types_stay() -> None:
    """Merging replaces by type and keeps the order."""
    degraded = Condition(type="Degraded", status="False", reason="AsExpected", last_transition_time=NOON)
    merged = merge_conditions([ready("True", at=NOON), degraded], [ready("False", at=LATER)])
    assert [condition.type for condition in merged] == ["Ready", "Degraded"]


def test_timestamp() -> None:
    """Times are written in UTC and whole seconds."""
    moment = datetime(2024, 1, 1, 14, 0, 0, 999, tzinfo=timezone(timedelta(hours=2)))
    assert timestamp(moment) == NOON


def test_progress() -> None:
    """The percentage is that of the bytes, if any, and is 100 only when all moves are done."""
    assert Progress.of(moves=(1, 4), bytes_=(90, 100)).percentage == 90
    assert Progress.of(moves=(1, 4)).percentage == 25
    assert Progress.of(moves=(3, 4), bytes_=(100, 100)).percentage == 99
    assert Progress.of(moves=(4, 4), bytes_=(100, 100)).percentage == 100
    assert Progress.of(moves=(0, 0)).percentage == 100
    assert Progress.of(moves=(0, 1), started_at=datetime(2024, 1, 1, 12, tzinfo=UTC)).started_at == NOON

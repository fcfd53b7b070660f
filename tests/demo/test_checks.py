"""The demo's final checks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from demo.checks import verdicts
from demo.facts import Fingerprint
from tests.demo.facts import SAMPLES, TALLY

SEEN = Fingerprint(100, 0xABC, "5.00")
GOOD: dict[str, Any] = {
    "expected": SEEN,
    "found": SEEN,
    "differing": 0,
    "tally": TALLY,
    "end": SAMPLES[-1],
    "drained": {"b": 0},
}


def wrong(**other: Any) -> list[str]:
    return [verdict.what for verdict in verdicts(**GOOD | other) if not verdict.holds]


def test_all_checks_pass() -> None:
    """All checks pass for a correct run."""
    assert wrong() == []


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"found": msgspec.structs.replace(SEEN, rows=99)}, "Spark's row count equals the number of acknowledged rows"),
        ({"found": msgspec.structs.replace(SEEN, checksum=1)}, "the checksum equals that of the acknowledged rows"),
        (
            {"found": msgspec.structs.replace(SEEN, amount="5.01")},
            "the sum of amounts equals the acknowledged one",
        ),
        ({"differing": 1}, "no row is missing or differs"),
        ({"tally": msgspec.structs.replace(TALLY, stale=1)}, "no read was stale"),
        ({"tally": msgspec.structs.replace(TALLY, errors=["x"])}, "no read or write failed"),
        ({"end": SAMPLES[1]}, "every partition has a leader, and no replica is moving"),
        ({"drained": {"b": 2}}, "b held no replica after its drain"),
    ],
)
def test_each_failed_check(other: dict[str, Any], what: str) -> None:
    """Each deviation fails exactly one check."""
    assert wrong(**other) == [what]


def test_difference_is_named() -> None:
    """The detail has the found and the expected value."""
    found = verdicts(**GOOD | {"found": msgspec.structs.replace(SEEN, rows=99)})
    assert found[0].detail == "found 99, expected 100"

"""The ledger of acknowledged rows."""

from __future__ import annotations

from random import Random

from demo.load import Ledger


def test_a_read_must_show_what_was_acknowledged_before_it() -> None:
    """A newer version is fine; an older one or none is stale."""
    ledger = Ledger()
    ledger.acknowledged([{"id": 1, "version": 5}])
    before = ledger.some_row(Random(1))
    assert before == {"id": 1, "version": 5}
    for version in (5, 6):
        ledger.seen({"id": 1, "version": version}, before)
    assert ledger.stale == 0
    ledger.seen({"id": 1, "version": 4}, before)
    ledger.seen(None, before)
    assert ledger.stale == 2


def test_rows_as_they_were_written_last() -> None:
    """Every row appears once; rows of failed writes are unsure."""
    ledger = Ledger()
    assert ledger.some_row(Random(1)) is None
    ledger.acknowledged([{"id": 1, "version": 1}, {"id": 2, "version": 1}])
    ledger.acknowledged([{"id": 1, "version": 2}])
    ledger.given_up([{"id": 2, "version": 3}, {"id": 3, "version": 3}])
    assert ledger.rows == {1: {"id": 1, "version": 2}, 2: {"id": 2, "version": 1}}
    assert ledger.unsure == {2, 3}
    assert ledger.writes == 2

"""What a leader logs of its own accord, and when."""

from __future__ import annotations

import pytest

from evenkeel.routing.routes import KnownTable
from evenkeel_store.entries import Expire
from evenkeel_store.heads import MAX_STAMPS, Head, PinnedAt, with_stamp
from evenkeel_store.housekeeping import due
from tests.store.support import KEYED

TABLE = KnownTable(key="orders.1", schema=KEYED, changes=True, retention=100.0)


@pytest.mark.parametrize(
    ("head", "silent", "expected"),
    [
        (Head(replica=1), [], None),
        (Head(replica=1, pins={"p": PinnedAt(3, 500_001)}), [], None),
        (
            Head(replica=1, pins={"p": PinnedAt(3, 500_000), "q": PinnedAt(3, 9**9)}),
            [],
            Expire(pins=500_000, at=500_000),
        ),
        (Head(replica=1), ["w"], Expire(writers=77, at=500_000)),
        (Head(replica=1, changes=True, stamps=((400_001, 5),)), [], None),
        (
            Head(replica=1, changes=True, stamps=((399_000, 5), (400_000, 8), (400_001, 9))),
            [],
            Expire(changes=8, at=500_000),
        ),
        (Head(replica=1, changes=True, stamps=((399_000, 5),), forgotten=5), [], None),
        (Head(replica=1, changes=False, stamps=((399_000, 5),)), [], None),
    ],
)
def test_due(head: Head, silent: list[str], expected: Expire | None) -> None:
    """Pins past their time, silent writers and changes past the retention are let go; nothing is logged for nothing."""
    assert due(head, silent, now=500_000, table=TABLE, writers_before=77) == expected


def test_changes_of_an_unknown_table_are_kept() -> None:
    """Without the table's record nobody can tell how long to keep changes."""
    head = Head(replica=1, changes=True, stamps=((1, 5),))
    assert due(head, [], now=500_000, table=None, writers_before=0) is None


def test_stamps_are_bounded() -> None:
    """However long a table lives, its head has a bounded number of stamps, from the first to the last."""
    head = Head(replica=1)
    for index in range(5000):
        head = with_stamp(head, at=index * 20_000, index=index)
        head = with_stamp(head, at=index * 20_000 + 1, index=index)
    assert len(head.stamps) <= MAX_STAMPS
    assert head.stamps[0] == (0, 0)
    assert head.stamps[-1][1] > 4980
    assert list(head.stamps) == sorted(head.stamps)

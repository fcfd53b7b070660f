"""What a leader expires, and when."""

from __future__ import annotations

import pytest

from evenkeel.routing.routing_table import KnownTable
from evenkeel_store.engine.group_metadata import MAX_STAMPS, GroupMetadata, PinnedAt, with_stamp
from evenkeel_store.engine.log_entries import Expire
from evenkeel_store.maintenance.leader_maintenance import due
from tests.store.support import KEYED

TABLE = KnownTable(key="orders.1", schema=KEYED, changes=True, retention=100.0)


@pytest.mark.parametrize(
    ("metadata", "silent", "expected"),
    [
        (GroupMetadata(replica=1), [], None),
        (GroupMetadata(replica=1, pins={"p": PinnedAt(3, 500_001)}), [], None),
        (
            GroupMetadata(replica=1, pins={"p": PinnedAt(3, 500_000), "q": PinnedAt(3, 9**9)}),
            [],
            Expire(pins=500_000, at=500_000),
        ),
        (GroupMetadata(replica=1), ["w"], Expire(writers=77, at=500_000)),
        (GroupMetadata(replica=1, changes=True, stamps=((400_001, 5),)), [], None),
        (
            GroupMetadata(replica=1, changes=True, stamps=((399_000, 5), (400_000, 8), (400_001, 9))),
            [],
            Expire(changes=8, at=500_000),
        ),
        (GroupMetadata(replica=1, changes=True, stamps=((399_000, 5),), forgotten=5), [], None),
        (GroupMetadata(replica=1, changes=False, stamps=((399_000, 5),)), [], None),
    ],
)
def test_due(metadata: GroupMetadata, silent: list[str], expected: Expire | None) -> None:
    """Expired pins, silent writers and changes past their retention are due; otherwise nothing is logged."""
    assert due(metadata, silent, now=500_000, table=TABLE, writers_before=77) == expected


def test_changes_of_an_unknown_table_are_kept() -> None:
    """Without the table's record the retention is unknown, and changes stay."""
    metadata = GroupMetadata(replica=1, changes=True, stamps=((1, 5),))
    assert due(metadata, [], now=500_000, table=None, writers_before=0) is None


def test_stamps_are_bounded() -> None:
    """However long a table lives, its metadata has a bounded number of stamps, from the first to the last."""
    metadata = GroupMetadata(replica=1)
    for index in range(5000):
        metadata = with_stamp(metadata, at=index * 20_000, index=index)
        metadata = with_stamp(metadata, at=index * 20_000 + 1, index=index)
    assert len(metadata.stamps) <= MAX_STAMPS
    assert metadata.stamps[0] == (0, 0)
    assert metadata.stamps[-1][1] > 4980
    assert list(metadata.stamps) == sorted(metadata.stamps)

"""What a leader has itself seen for the whole period may expire, whatever its stamps say."""

from __future__ import annotations

import itertools

from evenkeel_store.engine.group_metadata import GroupMetadata, PinnedAt
from evenkeel_store.engine.log_entries import Expire
from evenkeel_store.engine.write_tokens import LastUse, TokenUse, WriteTokens
from evenkeel_store.maintenance.expiry_clock import ExpiryClock

DAY = 86_400.0
YEAR = 365 * DAY


def metadata(applied: int = 0, **fields: object) -> GroupMetadata:
    return GroupMetadata(replica=1, applied=applied, **fields)  # type: ignore[arg-type]


def due(ages: ExpiryClock, known: GroupMetadata) -> Expire | None:
    return ages.due(known, writer_seconds=DAY, retention=2 * DAY)


def test_writers_are_silent_since_they_were_seen() -> None:
    """A stamp of a year ago proves nothing; a day without a use does."""
    ages, silent = ExpiryClock(), LastUse(5, 1, 1)
    ages.look(metadata(), {"w": silent}, now=0)
    ages.look(metadata(), {"w": silent}, now=DAY - 1)
    assert due(ages, metadata()) is None
    ages.look(metadata(), {"w": silent}, now=DAY)
    assert due(ages, metadata()) == Expire(writers=5)


def test_every_use_counts() -> None:
    """A token that is used with an older stamp than the one before makes its writer as young as any other."""
    tokens = WriteTokens([TokenUse("w", number, "", 1000) for number in range(1024)])
    seen = set()
    for number in range(1024, 1030):
        seen.add(tokens.last_uses()["w"])
        tokens.use(TokenUse("w", number, "", 3))
    assert len(seen) == 6
    ages = ExpiryClock()
    ages.look(metadata(), {"w": LastUse(1000, 1, 1)}, now=0)
    ages.look(metadata(), {"w": LastUse(1000, 2, 1)}, now=DAY)
    assert due(ages, metadata()) is None


def test_nothing_goes_with_others() -> None:
    """Replicas compare stamps: a silent writer stays while one with the same or an older stamp has to."""
    ages = ExpiryClock()
    old, young = LastUse(50, 1, 1), LastUse(50, 1, 9)
    ages.look(metadata(), {"a": LastUse(9, 1, 1), "b": old}, now=0)
    ages.look(metadata(), {"a": LastUse(9, 1, 1), "b": old, "c": young}, now=DAY)
    assert due(ages, metadata()) == Expire(writers=9)
    ages.look(metadata(), {"b": old, "c": young}, now=2 * DAY)
    assert due(ages, metadata()) == Expire(writers=50)


def test_pins_live_for_a_day() -> None:
    """How long a pin was asked for is not known, and asking again counts even where it does not end later."""
    ages, ends = ExpiryClock(), round(1000 * YEAR)
    ages.look(metadata(pins={"p": PinnedAt(3, ends), "q": (kept := PinnedAt(3, 7))}), {}, now=0)
    ages.look(metadata(pins={"p": PinnedAt(3, ends), "q": kept}), {}, now=DAY)
    assert due(ages, metadata()) == Expire(pins=7)


def test_changes_are_as_old_as_they_were_seen_applied() -> None:
    """An index that was seen applied two days ago may go, however its stamp; not what was applied since."""
    ages = ExpiryClock()
    for now, applied in ((0.0, 5), (DAY, 8), (2 * DAY - 1, 9)):
        ages.look(metadata(applied, changes=True, stamps=((1, 4), (round(1000 * YEAR), 7))), {}, now=now)
    assert due(ages, metadata(9, changes=True)) is None
    ages.look(metadata(9, changes=True, stamps=((1, 4), (2, 7))), {}, now=2 * DAY)
    assert due(ages, metadata(9, changes=True)) == Expire(changes=5)
    assert due(ages, metadata(9, changes=True, forgotten=5)) is None
    assert due(ages, metadata(9)) is None
    assert ages.due(metadata(9, changes=True), writer_seconds=DAY, retention=None) is None


def test_indexes_are_remembered_evenly() -> None:
    """However long changes are kept, indexes of the whole period are remembered, and not too many."""
    ages, known = ExpiryClock(), metadata(changes=True, stamps=((1, 1),))
    for number in range(50_000):
        known = metadata(number, changes=True, stamps=((1, 1),))
        ages.look(known, {}, now=10.0 * number)
    seen = [since for since, _ in ages._indexes]
    assert len(seen) <= 256
    assert max(later - since for since, later in itertools.pairwise(seen)) <= 500_000 / 128 + 10
    assert due(ages, known) == Expire(
        changes=max(applied for since, applied in ages._indexes if since <= 499_990 - 2 * DAY)
    )


def test_bounds() -> None:
    """Log time begins no later than what makes everything as old as it was seen to be."""
    ages, pin = ExpiryClock(), PinnedAt(3, 100_000_000)
    for now in (0.0, 60.0):
        known = metadata(9, pins={"p": pin}, changes=True, stamps=((500_000, 9),))
        ages.look(known, {"w": LastUse(400_000, 1, 1)}, now=now)
    assert sorted(ages.bounds()) == [460_000, 560_000, 100_000_000 - 86_400_000 + 60_000]
    assert list(ExpiryClock().bounds()) == []

"""Only what a leader has observed for the whole period expires, whatever the stamps are."""

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


def due(clock: ExpiryClock, known: GroupMetadata) -> Expire | None:
    return clock.due(known, writer_seconds=DAY, retention=2 * DAY)


def test_silence_counts_from_the_first_observation() -> None:
    """A stamp of a year ago proves nothing; a day without a use does."""
    clock, silent = ExpiryClock(), LastUse(5, 1, 1)
    clock.observe(metadata(), {"w": silent}, now=0)
    clock.observe(metadata(), {"w": silent}, now=DAY - 1)
    assert due(clock, metadata()) is None
    clock.observe(metadata(), {"w": silent}, now=DAY)
    assert due(clock, metadata()) == Expire(writers=5)


def test_every_use_counts() -> None:
    """A use with an older stamp than the one before still resets the writer's age."""
    tokens = WriteTokens([TokenUse("w", number, "", 1000) for number in range(1024)])
    seen = set()
    for number in range(1024, 1030):
        seen.add(tokens.last_uses()["w"])
        tokens.use(TokenUse("w", number, "", 3))
    assert len(seen) == 6
    clock = ExpiryClock()
    clock.observe(metadata(), {"w": LastUse(1000, 1, 1)}, now=0)
    clock.observe(metadata(), {"w": LastUse(1000, 2, 1)}, now=DAY)
    assert due(clock, metadata()) is None


def test_nothing_expires_together_with_what_must_stay() -> None:
    """Replicas compare stamps: a silent writer stays while one with the same or an older stamp must stay."""
    clock = ExpiryClock()
    old, young = LastUse(50, 1, 1), LastUse(50, 1, 9)
    clock.observe(metadata(), {"a": LastUse(9, 1, 1), "b": old}, now=0)
    clock.observe(metadata(), {"a": LastUse(9, 1, 1), "b": old, "c": young}, now=DAY)
    assert due(clock, metadata()) == Expire(writers=9)
    clock.observe(metadata(), {"b": old, "c": young}, now=2 * DAY)
    assert due(clock, metadata()) == Expire(writers=50)


def test_pins_expire_after_a_day() -> None:
    """The lifetime of a pin is unknown; renewing it resets its age even if it does not expire later."""
    clock, ends = ExpiryClock(), round(1000 * YEAR)
    clock.observe(metadata(pins={"p": PinnedAt(3, ends), "q": (kept := PinnedAt(3, 7))}), {}, now=0)
    clock.observe(metadata(pins={"p": PinnedAt(3, ends), "q": kept}), {}, now=DAY)
    assert due(clock, metadata()) == Expire(pins=7)


def test_changes_age_from_their_observed_index() -> None:
    """Changes up to an index observed two days ago expire, whatever its stamp; later ones do not."""
    clock = ExpiryClock()
    for now, applied in ((0.0, 5), (DAY, 8), (2 * DAY - 1, 9)):
        clock.observe(metadata(applied, changes=True, stamps=((1, 4), (round(1000 * YEAR), 7))), {}, now=now)
    assert due(clock, metadata(9, changes=True)) is None
    clock.observe(metadata(9, changes=True, stamps=((1, 4), (2, 7))), {}, now=2 * DAY)
    assert due(clock, metadata(9, changes=True)) == Expire(changes=5)
    assert due(clock, metadata(9, changes=True, forgotten=5)) is None
    assert due(clock, metadata(9)) is None
    assert clock.due(metadata(9, changes=True), writer_seconds=DAY, retention=None) is None


def test_observed_indexes_are_spread_evenly() -> None:
    """However long changes are kept, a bounded number of indexes covers the whole period."""
    clock, known = ExpiryClock(), metadata(changes=True, stamps=((1, 1),))
    for number in range(50_000):
        known = metadata(number, changes=True, stamps=((1, 1),))
        clock.observe(known, {}, now=10.0 * number)
    seen = [since for since, _ in clock._indexes]
    assert len(seen) <= 256
    assert max(later - since for since, later in itertools.pairwise(seen)) <= 500_000 / 128 + 10
    assert due(clock, known) == Expire(
        changes=max(applied for since, applied in clock._indexes if since <= 499_990 - 2 * DAY)
    )


def test_bounds() -> None:
    """The first log time makes nothing older than it was observed to be."""
    clock, pin = ExpiryClock(), PinnedAt(3, 100_000_000)
    for now in (0.0, 60.0):
        known = metadata(9, pins={"p": pin}, changes=True, stamps=((500_000, 9),))
        clock.observe(known, {"w": LastUse(400_000, 1, 1)}, now=now)
    assert sorted(clock.bounds()) == [460_000, 560_000, 100_000_000 - 86_400_000 + 60_000]
    assert list(ExpiryClock().bounds()) == []

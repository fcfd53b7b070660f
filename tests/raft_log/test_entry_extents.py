"""Extents, compared with a map from index to round."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel_raft.log.entry_extents import Extents

STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "compact", "move"]), st.integers(0, 99), st.integers(1, 4)), max_size=40
)


class Reference:
    """Index to round."""

    def __init__(self) -> None:
        self.rounds: dict[int, int] = {}
        self.base = 0

    def append(self, first: int, end: int, round_: int) -> None:
        self.rounds = {index: found for index, found in self.rounds.items() if index < first}
        self.rounds |= dict.fromkeys(range(first, end), round_)

    def compact(self, index: int) -> None:
        self.rounds = {found: round_ for found, round_ in self.rounds.items() if found > index}
        self.base = index

    def ranges(self) -> list[tuple[int, int, int]]:
        """Return the maximal ranges (first, end, round)."""
        found: list[tuple[int, int, int]] = []
        for index, round_ in sorted(self.rounds.items()):
            if found and found[-1][1] == index and found[-1][2] == round_:
                found[-1] = (found[-1][0], index + 1, round_)
            else:
                found.append((index, index + 1, round_))
        return found


@given(STEPS)
@settings(derandomize=True, deadline=None)
def test_extents_follow_the_definition(steps: list[tuple[str, int, int]]) -> None:
    """Every index is in its last round, and the dropped bytes are those that were added."""
    extents, reference = Extents(), Reference()
    live: dict[int, int] = {}
    for number, (step, pick, count) in enumerate(steps):
        indexes = sorted(reference.rounds)
        last = indexes[-1] if indexes else reference.base
        if step == "append":
            first = reference.base + 1 + pick % (last - reference.base + 1)
            dropped = extents.append(first, first + count, round_=number, size=count)
            reference.append(first, first + count, number)
            live[number] = count
        elif step == "compact":
            index = reference.base + pick % (last - reference.base + 1)
            dropped = extents.compact(index)
            reference.compact(index)
        elif reference.rounds:
            first, end, round_ = reference.ranges()[pick % len(reference.ranges())]
            size = end - first + pick
            assert extents.size_of(first, end) > 0
            dropped = extents.move(first, end, round_=number, size=size)
            reference.rounds |= dict.fromkeys(range(first, end), number)
            live[number] = size
        else:
            continue
        for round_, size in dropped:
            live[round_] -= size
        assert {round_ for round_, size in live.items() if size} == set(reference.rounds.values())
        flat = [(index, round_) for first, end, round_, _ in extents for index in range(first, end)]
        assert flat == sorted(reference.rounds.items())
        low, high = sorted((1 + pick % (last + 6), 1 + (7 * pick + count) % (last + 6)))
        for round_ in live:
            inside = [index for begin, end in extents.inside(low, high, round_=round_) for index in range(begin, end)]
            assert inside == [index for index, held in flat if held == round_ and low <= index <= high]
        assert sum(live.values()) == sum(size for *_, size in extents)
        assert all(size >= 0 for size in live.values())


def test_sizes_are_of_whole_extents() -> None:
    """A range that begins or ends inside an extent, or beyond all, has the size 0."""
    extents = Extents()
    extents.append(1, 5, round_=1, size=40)
    extents.append(5, 7, round_=2, size=25)
    assert [extents.size_of(*range_) for range_ in ((1, 5), (5, 7), (1, 7))] == [40, 25, 65]
    for first, end in ((1, 4), (2, 5), (1, 6), (5, 8), (7, 9), (0, 5), (9, 9)):
        assert not extents.size_of(first, end)

"""Quorums against their definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenkeel_raft.core.quorum import LOST, PENDING, UNBOUNDED, WON, acknowledged, has_quorum, vote_result

VOTERS = st.sets(st.integers(1, 9), max_size=7).map(sorted)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9))
def test_acknowledged_is_what_a_majority_reaches(values: list[int]) -> None:
    """More than half of the values reach the result, and no higher number."""
    result = acknowledged(list(values))
    assert sum(value >= result for value in values) > len(values) // 2
    assert sum(value > result for value in values) <= len(values) // 2


def test_an_empty_half_never_lowers_the_other() -> None:
    """An empty half acknowledges everything, so an ordinary configuration is a joint one without outgoing voters."""
    assert acknowledged([]) == UNBOUNDED


@given(VOTERS, VOTERS, st.dictionaries(st.integers(1, 9), st.booleans()))
def test_vote_result_follows_the_definition(voters: list[int], outgoing: list[int], votes: dict[int, bool]) -> None:
    """Won when both halves have a majority; lost when one can no longer reach it; else pending."""

    def yes(half: list[int]) -> int:
        return sum(votes.get(voter, False) for voter in half)

    def possible(half: list[int]) -> int:
        return sum(votes.get(voter, True) for voter in half)

    halves = [half for half in (voters, outgoing) if half]
    if any(possible(half) <= len(half) // 2 for half in halves):
        expected = LOST
    elif all(yes(half) > len(half) // 2 for half in halves):
        expected = WON
    else:
        expected = PENDING
    assert vote_result(voters, outgoing, votes) == expected


def test_an_empty_configuration_has_no_quorum() -> None:
    """A replica without a configuration never has a quorum."""
    assert not has_quorum((), (), {1, 2, 3})
    assert has_quorum((1, 2), (2, 3), {1, 2, 3})
    assert not has_quorum((1, 2), (2, 3), {1, 2})

"""Splitting a change into steps, and assigning replica ids."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.protocol.change_steps import assign_ids, pending_of, steps
from evenkeel.protocol.records import Peer, Role, shape, voters
from tests.protocol.support import peers, shown, shown_queue, targets

PLAN = 9


@pytest.mark.parametrize(
    ("current", "target", "expected"),
    [
        ("a1 b1 c1", "c1 a1 b1", None),
        ("a1 b1*", "a1 b1", "a1 b1"),
        ("a1 b1", "a1 b1*", "a1 b1*"),
        ("a1 b1*", "a1* b1", "a1* b1"),
        ("a1 b1 c1", "a1 b1", "a1 b1"),
        ("a1", "a1 b2*", "a1 b2*"),
        ("a1 b1 c1", "a1 b1 d2", "a1 b1 d2"),
        ("a1", "a1 b2", "a1 b2* | a1 b2"),
        ("a1", "b2", "a1 b2* | b2"),
        ("a1", "a1 b2 c2", "a1 b2* | a1 b2 c2"),
        ("a1 b1 c1", "a1 b1 c1 d2 e2", "a1 b1 c1 d2 e2"),
        ("a1 b1 c1", "d2 e2 f2", "a1 b1 c1 d2* e2* | d2 e2 f2"),
        ("a1 b1 c1", "a1 d2 e2", "a1 b1 c1 d2* | a1 d2 e2"),
        ("a1 b1* c1*", "b1 c1 d2", "b1 c1 d2"),
        ("a1 b1", "a1 b2@2", "a1 b1 b2@2* | a1 b2@2"),
        ("a1", "a1 b2* c2*", "a1 b2* c2*"),
    ],
)
def test_paths(current: str, target: str, expected: str | None) -> None:
    """A change takes one step if most new voters are already members, and two steps otherwise."""
    assert shown_queue(pending_of(peers(current), peers(target))) == expected


def test_ids_come_from_the_present_configuration() -> None:
    """A target with another id for an existing replica keeps the existing id."""
    assert steps(peers("a1 b1"), peers("a7 b7*")) == (peers("a1 b1*"),)
    assert steps(peers("a1 b1"), peers("a7 b7")) == ()


@pytest.mark.parametrize(
    ("target", "keep", "expected"),
    [
        ("a b", "", "a9 b9"),
        ("b a", "a1 b2", "a1 b2"),
        ("a* b", "a1 b2*", "a1* b2"),
        ("a@2 b", "a1 b2", "a9@2 b2"),
        ("a", "a1 a3", "a1"),
        ("c", "a1 b2", "c9"),
    ],
)
def test_ids(target: str, keep: str, expected: str) -> None:
    """An existing replica on the same volume keeps its id (the first one listed); others get the plan's number."""
    assert shown(assign_ids(targets(target), keep=peers(keep), plan=PLAN)) == expected


def configurations(*, replica: int) -> st.SearchStrategy[tuple[Peer, ...]]:
    """Return some of seven stores, each on one of two volumes, with at least one voter, in random order."""
    places = st.sampled_from([None, *((volume, role) for volume in (1, 2) for role in Role)])

    def made(drawn: list[tuple[int, Role] | None]) -> tuple[Peer, ...]:
        chosen = [(name, *place) for name, place in zip("fbgdaec", drawn, strict=True) if place is not None]
        return tuple(Peer(name, f"{name}-{volume}", replica, role) for name, volume, role in chosen)

    return st.lists(places, min_size=7, max_size=7).map(made).filter(lambda peers: bool(voters(peers)))


def pairs(test: Callable[..., None]) -> Callable[..., None]:
    """Return two arbitrary configurations: the present one and the target."""
    drawn = given(current=configurations(replica=1), target=configurations(replica=PLAN))
    return settings(max_examples=200, derandomize=True, deadline=None)(drawn(test))


@pairs
def test_empty_exactly_where_the_sets_are_equal(current: tuple[Peer, ...], target: tuple[Peer, ...]) -> None:
    """There are no steps if and only if both configurations have the same stores, volumes and roles."""
    assert (steps(current, target) == ()) == (shape(current) == shape(target))
    assert steps(current, current) == ()


@pairs
def test_ends_in_the_target(current: tuple[Peer, ...], target: tuple[Peer, ...]) -> None:
    """At most two steps lead to the target, and each changes something."""
    path = (current, *steps(current, target))
    assert len(path) <= 3
    assert shape(path[-1]) == shape(target)
    assert all(shape(before) != shape(after) for before, after in itertools.pairwise(path))


@pairs
def test_keeps_ids(current: tuple[Peer, ...], target: tuple[Peer, ...]) -> None:
    """Existing replicas keep their id in every step, new ones have the target's, and no replica is listed twice."""
    known = {(peer.store, peer.volume): peer.replica for peer in current}
    for step in steps(current, target):
        assert all(peer.replica == known.get((peer.store, peer.volume), PLAN) for peer in step)
        assert len({peer.id for peer in step}) == len({(peer.store, peer.volume) for peer in step}) == len(step)


@pairs
def test_a_majority_of_each_step_is_in_the_step_before(current: tuple[Peer, ...], target: tuple[Peer, ...]) -> None:
    """A majority of every step's voters is in the step before it, and every step has voters."""
    for before, after in itertools.pairwise((current, *steps(current, target))):
        members = {peer.id for peer in before}
        deciding = voters(after)
        assert deciding
        assert 2 * sum(peer.id in members for peer in deciding) > len(deciding)


@pairs
def test_a_first_step_only_adds_learners(current: tuple[Peer, ...], target: tuple[Peer, ...]) -> None:
    """The first of two steps only adds learners that will vote, as few as possible."""
    path = steps(current, target)
    if len(path) < 2:
        return
    first, last = path
    added = set(first) - set(current)
    assert set(current) <= set(first)
    assert all(peer.role is Role.LEARNER for peer in added)
    assert {peer.id for peer in added} <= {peer.id for peer in voters(last)}
    members = {peer.id for peer in first} - {min(added).id}
    assert 2 * sum(peer.id in members for peer in voters(last)) <= len(voters(last))


@pairs
def test_order_does_not_matter(current: tuple[Peer, ...], target: tuple[Peer, ...]) -> None:
    """Two operators that read the same peers in different order store the same bytes."""
    assert steps(current, target) == steps(sorted(current), sorted(target, reverse=True))

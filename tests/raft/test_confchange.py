"""Configuration changes: quorums of consecutive configurations overlap, and a joint one ends as proposed."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel_raft.core.confchange import apply_change, enter_joint, leave, leave_joint, simple
from evenkeel_raft.core.errors import Refusal, RefusedError
from evenkeel_raft.core.quorum import has_quorum
from evenkeel_raft.core.raft_types import (
    JOINT,
    LEARNER,
    REMOVE,
    SIMPLE,
    VOTER,
    Change,
    Conf,
    ConfChange,
    decode_conf_change,
    encode_conf_change,
)

REPLICAS = st.integers(1, 6)
CONFS = st.tuples(st.sets(REPLICAS, min_size=1, max_size=4), st.sets(REPLICAS, max_size=2)).map(
    lambda sets: Conf(voters=tuple(sorted(sets[0])), learners=tuple(sorted(sets[1] - sets[0])))
)
CHANGES = st.lists(
    st.builds(Change, st.sampled_from((VOTER, LEARNER, REMOVE)), REPLICAS),
    max_size=4,
    unique_by=lambda change: change.replica,
)


def overlap(one: Conf, other: Conf) -> bool:
    members = {*one.members(), *other.members()}
    return not any(
        has_quorum(one.voters, one.outgoing, set(chosen))
        and has_quorum(other.voters, other.outgoing, members - set(chosen))
        for size in range(len(members) + 1)
        for chosen in combinations(sorted(members), size)
    )


def well_formed(conf: Conf) -> bool:
    return (
        bool(conf.voters)
        and not set(conf.learners) & {*conf.voters, *conf.outgoing}
        and set(conf.learners_next) <= set(conf.outgoing) - set(conf.voters)
    )


@given(CONFS, CHANGES)
def test_joint_overlaps_with_both_of_its_neighbours(conf: Conf, changes: list[Change]) -> None:
    """Through any joint change, quorums always overlap, and it ends with the proposed roles."""
    try:
        joint = enter_joint(conf, changes, token=7, staged=False)
    except RefusedError:
        return
    after = leave_joint(joint, token=7, staged=False)
    assert well_formed(joint)
    assert well_formed(after)
    assert overlap(conf, joint)
    assert overlap(joint, after)
    for change in changes:
        assert (change.replica in after.voters) == (change.op == VOTER)
        assert (change.replica in after.learners) == (change.op == LEARNER)


@given(CONFS, CHANGES)
def test_simple_changes_no_voter(conf: Conf, changes: list[Change]) -> None:
    """A simple change keeps the voters or is refused."""
    try:
        after = simple(conf, changes, token=7, staged=True)
    except RefusedError:
        return
    assert after.voters == conf.voters
    assert well_formed(after)


def test_demotion_waits_for_the_leave() -> None:
    """A demoted voter keeps its outgoing vote and becomes a learner on leave; a promotion is immediate."""
    conf = Conf(voters=(1, 2, 3), learners=(4,))
    joint = enter_joint(conf, [Change(LEARNER, 3), Change(VOTER, 4)], token=1, staged=False)
    assert joint == Conf(voters=(1, 2, 4), outgoing=(1, 2, 3), learners_next=(3,), token=1)
    assert apply_change(joint, leave(joint)) == Conf(voters=(1, 2, 4), learners=(3,), token=1)


def test_leave_copies_the_token_of_joint() -> None:
    """The change that leaves a joint configuration carries the token of the one that entered it."""
    joint = enter_joint(Conf(voters=(1,)), [Change(VOTER, 2)], token=42, staged=False)
    assert leave(joint).token == 42


def test_info_lives_as_long_as_its_member() -> None:
    """A member's info is kept while it is in either half, and can be replaced."""
    conf = simple(Conf(voters=(1,), info={1: b"a"}), [Change(LEARNER, 2, b"b")], token=0, staged=True)
    assert conf.info == {1: b"a", 2: b"b"}
    joint = enter_joint(conf, [Change(VOTER, 2), Change(REMOVE, 1)], token=0, staged=False)
    assert joint.info == {1: b"a", 2: b"b"}
    assert leave_joint(joint, token=0, staged=False).info == {2: b"b"}


@pytest.mark.parametrize(
    ("conf", "change"),
    [
        (Conf(), ConfChange(JOINT, (Change(VOTER, 1),))),
        (Conf(voters=(1,)), ConfChange(JOINT, (Change(VOTER, 0),))),
        (Conf(voters=(1,)), ConfChange(JOINT, (Change(9, 2),))),
        (Conf(voters=(1,)), ConfChange(2, (Change(VOTER, 2),))),
        (Conf(voters=(1,), outgoing=(1, 2)), ConfChange(2, (Change(VOTER, 2),))),
        (Conf(voters=(1,)), ConfChange(9)),
    ],
)
def test_invalid_changes_are_refused(conf: Conf, change: ConfChange) -> None:
    """An invalid change is refused."""
    with pytest.raises(RefusedError) as refused:
        apply_change(conf, change)
    assert refused.value.reason is Refusal.BAD_CHANGE


def test_a_change_survives_the_log() -> None:
    """A change decodes to itself."""
    change = ConfChange(SIMPLE, (Change(LEARNER, 5, b"store-5"),), token=3, staged=True)
    assert decode_conf_change(encode_conf_change(change)) == change
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Conf(voters=(1, 2))), type=Conf) == Conf(voters=(1, 2))

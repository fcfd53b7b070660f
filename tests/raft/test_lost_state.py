"""A leader that lost its state gets it from a member."""

from __future__ import annotations

import random

import pytest

from evenkeel_raft.core.raft_messages import (
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    SnapshotRequest,
)
from evenkeel_raft.core.raft_types import (
    Conf,
    HardState,
    Settings,
    SnapshotMeta,
)
from evenkeel_raft.core.rawnode import RawNode


def _leader_without_a_state(learners: tuple[int, ...] = (2,)) -> RawNode:
    """The only voter of a group, with learners, whose log begins at 4 and whose state machine has nothing."""
    meta = SnapshotMeta(4, 2, Conf(voters=(1,), learners=learners))
    node = RawNode(group=1, replica=1, rng=random.Random(1), meta=meta, hard_state=HardState(2, 1, 4), applied=0)
    node.campaign()
    for _ in range(3):
        out = node.ready()
        if out.append is not None:
            node.on_persisted(out.append.token)
    assert node.leading
    assert node.needs_restore
    assert node.committed == 5
    return node


@pytest.mark.parametrize(
    ("index", "term"), [(3, 2), (5, 2), (6, 3)], ids=["before the log", "another entry", "not committed"]
)
def test_a_leader_takes_no_state_but_its_logs(index: int, term: int) -> None:
    """A member's state must end with a committed entry of the leader's own log, or entries would be lost."""
    node = _leader_without_a_state()
    node.step(InstallSnapshot(1, 0, 2, 1, node.term, SnapshotMeta(index, term, node.conf), True))
    assert node.ready().restore is None
    assert node.needs_restore
    assert node.leading


def test_a_leader_takes_a_members_state_and_leads_on() -> None:
    """What follows the snapshot is applied from the log."""
    node = _leader_without_a_state()
    node.step(InstallSnapshot(1, 0, 2, 1, node.term, SnapshotMeta(4, 2, node.conf), True))
    out = node.ready()
    assert out.restore is not None
    assert (out.restore.index, [entry.index for entry in out.apply]) == (4, [5])
    assert (node.leading, node.needs_restore) == (True, False)


def _asked(node: RawNode, timeouts: int) -> list[int]:
    """Which learners it asks for their state within so many election timeouts; all of them answer heartbeats."""
    asked: list[int] = []
    for _ in range(timeouts * Settings().election_ticks):
        node.tick()
        for message in node.ready().messages:
            if isinstance(message, SnapshotRequest):
                asked.append(message.receiver)
            elif isinstance(message, Heartbeat):
                node.step(HeartbeatResponse(1, 0, message.receiver, 1, node.term, message.context, 5))
    return asked


def _leader_with_two_learners() -> RawNode:
    node = _leader_without_a_state(learners=(2, 3))
    for learner in (2, 3):
        node.step(AppendResponse(1, 0, learner, 1, node.term, 5, False, 0, 0, 5))
    return node


def test_a_leader_without_a_state_asks_one_member_for_minutes_then_the_next() -> None:
    """A member may take long to write its snapshot. One that never sends it is not the only one that has a state."""
    assert _asked(_leader_with_two_learners(), 300) == [2] * 120 + [3] * 120 + [2] * 60


def test_a_leader_asks_nobody_while_a_snapshot_is_coming_in() -> None:
    """However long that takes; if the snapshot fails, the same member is asked once more."""
    node = _leader_with_two_learners()
    assert _asked(node, 119) == [2] * 119
    node.set_receiving(True)
    assert _asked(node, 300) == []
    node.set_receiving(False)
    assert _asked(node, 120) == [2] * 120
    assert _asked(node, 1) == [3]


def test_who_sends_a_state_is_not_taken_for_a_leader() -> None:
    """The leader that asked may have stepped down meanwhile, or the sender may be of a later term."""
    for later in (0, 1):
        node = _leader_without_a_state()
        term = node.term + later
        node._raft.become_follower(node.term, 0)
        node.step(InstallSnapshot(1, 0, 2, 1, term, SnapshotMeta(4, 2, node.conf), True))
        assert (node.leader, node.term) == (0, term)
        assert node.ready().restore is not None

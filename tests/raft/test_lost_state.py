"""A leader that lost its state restores it from a member."""

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
    """Return the only voter of a group with learners; its log begins at 4 and its state machine is empty."""
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
def test_a_leader_restores_only_a_state_that_matches_its_log(index: int, term: int) -> None:
    """A member's state must end with a committed entry of the leader's own log, or entries would be lost."""
    node = _leader_without_a_state()
    node.step(InstallSnapshot(1, 0, 2, 1, node.term, SnapshotMeta(index, term, node.conf), True))
    assert node.ready().restore is None
    assert node.needs_restore
    assert node.leading


def test_a_leader_restores_a_members_state_and_keeps_leading() -> None:
    """Entries after the snapshot are applied from the log."""
    node = _leader_without_a_state()
    node.step(InstallSnapshot(1, 0, 2, 1, node.term, SnapshotMeta(4, 2, node.conf), True))
    out = node.ready()
    assert out.restore is not None
    assert (out.restore.index, [entry.index for entry in out.apply]) == (4, [5])
    assert (node.leading, node.needs_restore) == (True, False)


def _asked(node: RawNode, timeouts: int) -> list[int]:
    """Return the learners it requests a snapshot from within some election timeouts; all respond to heartbeats."""
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
    """A member may need minutes to write its snapshot; one that never sends it is replaced by the next."""
    assert _asked(_leader_with_two_learners(), 300) == [2] * 120 + [3] * 120 + [2] * 60


def test_a_leader_requests_nothing_while_a_snapshot_is_arriving() -> None:
    """It requests again, from the same member, only if that snapshot fails."""
    node = _leader_with_two_learners()
    assert _asked(node, 119) == [2] * 119
    node.set_receiving(True)
    assert _asked(node, 300) == []
    node.set_receiving(False)
    assert _asked(node, 120) == [2] * 120
    assert _asked(node, 1) == [3]


def test_the_sender_of_a_repair_snapshot_is_not_followed() -> None:
    """The requesting leader may have stepped down, or the sender may be in a later term."""
    for later in (0, 1):
        node = _leader_without_a_state()
        term = node.term + later
        node._raft.become_follower(node.term, 0)
        node.step(InstallSnapshot(1, 0, 2, 1, term, SnapshotMeta(4, 2, node.conf), True))
        assert (node.leader, node.term) == (0, term)
        assert node.ready().restore is not None

"""The state of one partition's agent; the explorer shows that it suffices."""

from __future__ import annotations

import pytest

from evenkeel.metastore.metastore_api import TxnResult
from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.leader_decision import GroupView, Propose, Write
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import Lock, Retarget, Stable
from evenkeel_raft.agent.partition_agent import PartitionAgent, SeenTable
from tests.protocol.support import KEYS, PARTITION, TABLE, peers, queue

TERM = 3
READY = SeenTable(2, Retarget.ADJUST)
BEFORE = PartitionView(stable=Stable(peers("a1 b1 c1*")), stable_mod=4, pending=queue("a1 b1 c1"), pending_mod=7)
LOCKED = PartitionView(
    stable=BEFORE.stable,
    stable_mod=4,
    pending=BEFORE.pending,
    pending_mod=7,
    lock=Lock(token=7, term=TERM),
    lock_mod=9,
)
EVERYONE = frozenset(peer.id for peer in peers("a1 b1 c1"))


def group(*, term: int = TERM) -> GroupView:
    """The group as its leader sees it when all are well and caught up."""
    applied = Configuration(peers("a1 b1 c1*"))
    return GroupView(
        me=("a", 1),
        term=term,
        applied=applied,
        newest=applied,
        committed_in_term=True,
        caught_up=EVERYONE,
        answering=EVERYONE,
        commit_known=True,
    )


@pytest.fixture
def agent() -> PartitionAgent:
    """A leader that has read the keys at revision 8."""
    agent = PartitionAgent(PARTITION, KEYS.table(TABLE), store="a", volume="a-1")
    agent.see(BEFORE, READY, revision=8)
    agent.begin_term(TERM)
    return agent


def lock(agent: PartitionAgent) -> Write:
    """Have it put its lock."""
    write = agent.lead(group())
    assert isinstance(write, Write)
    assert write.what == "lock"
    agent.sent(write)
    return write


def test_a_leader_acts_only_on_what_it_has_read_in_its_term(agent: PartitionAgent) -> None:
    """A newly elected leader reads first and does nothing before."""
    assert not agent.reads_first(TERM)
    assert agent.reads_first(TERM + 1)
    assert agent.lead(group(term=TERM + 1)) is None
    agent.begin_term(TERM + 1)
    assert agent.lead(group(term=TERM + 1)) is not None


def test_nothing_is_done_about_a_table_that_is_not_ready(agent: PartitionAgent) -> None:
    """A table that is not ready is neither led nor read."""
    agent.see(BEFORE, None, revision=9)
    assert agent.lead(group()) is None
    assert not agent.reads_first(TERM + 1)
    assert agent.to_start() is None


def test_older_views_are_ignored(agent: PartitionAgent) -> None:
    """Views of older revisions are ignored; a view of the same revision is accepted."""
    agent.see(PartitionView(), None, revision=7)
    assert (agent.view, agent.table, agent.seen) == (BEFORE, READY, 8)
    agent.see(BEFORE, None, revision=8)
    assert agent.table is None
    agent.see(BEFORE, READY, revision=7)
    assert agent.table is None


def test_one_transaction_at_a_time(agent: PartitionAgent) -> None:
    """While a transaction is in flight nothing is decided, also after a new election."""
    lock(agent)
    assert agent.lead(group()) is None
    assert not agent.reads_first(TERM + 1)


def test_a_lock_counts_once_it_was_seen(agent: PartitionAgent) -> None:
    """After a successful lock the leader waits until the watch shows it."""
    lock(agent)
    agent.answered(TxnResult(True, 9, ()), revision=9)
    assert agent.lead(group()) is None
    agent.see(LOCKED, READY, revision=9)
    action = agent.lead(group())
    assert isinstance(action, Propose)
    assert action.what == "final"


def test_a_lock_of_unknown_outcome_is_written_again(agent: PartitionAgent) -> None:
    """The lock is written again even if it is visible, because the old transaction may still touch it."""
    lock(agent)
    agent.outcome_unknown()
    assert agent.reads_first(TERM)
    agent.see(LOCKED, READY, revision=9)
    agent.begin_term(TERM)
    lock(agent)


def test_no_lock_survives_a_new_term_or_restart(agent: PartitionAgent) -> None:
    """A lock of an earlier term, or from before a restart, does not belong to this term."""
    lock(agent)
    agent.answered(TxnResult(True, 9, ()), revision=9)
    agent.see(LOCKED, READY, revision=9)
    agent.begin_term(TERM + 1)
    write = agent.lead(group(term=TERM + 1))
    assert isinstance(write, Write)
    assert write.what == "lock"
    agent.restart()
    assert agent.view is None
    assert agent.lead(group()) is None


def test_only_what_was_read_clears_a_replica(agent: PartitionAgent) -> None:
    """A suspicion does not clear a replica; a read that names the replica revokes an earlier clearance."""
    gone = ("a", 0)
    assert agent.seems_excluded(gone)
    assert agent.confirmed_excluded is None
    agent.confirm_exclusion(gone)
    assert agent.confirmed_excluded == gone
    agent.confirm_exclusion(("a", 1))
    assert agent.confirmed_excluded is None

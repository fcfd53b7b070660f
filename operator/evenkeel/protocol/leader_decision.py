"""The next action of a raft group's leader, decided again after every event.

A change has these stages. Any of them can be interrupted and continued by a later leader:

    catch up    stage the new replicas of head(pending) as learners; unstage all others
    hand over   a leader that does not vote in the target hands over to a voter of both, before the lock
    lock        freeze pending, so the rest of the change runs to its end
    final       log the change (joint, learners only, or empty) with pending's mod revision as its change token
    leave       leave joint; only a leader that stays does this, an outgoing leader hands over within joint
    switch      record the applied configuration as stable, once a quorum knows that it is committed

A ready table without stable exists only after the metastore was adopted. Its leaders run one more stage:

    seed        leave joint, unstage all learners, log the configuration again with the table record's mod revision as
                its change token; once that is committed, record it as stable. The entry proves that this leader still
                led after it saw that stable is missing. Without it, a deposed leader could record an old configuration.

Decisions depend only on present state: the metastore's keys, the newest configuration, and the replicas that answer.
So a crash needs no recovery.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evenkeel.metastore.metastore_api import Compare, Txn
from evenkeel.protocol.group_configuration import Configuration, is_majority
from evenkeel.protocol.keys import PartitionKeys
from evenkeel.protocol.leader_transactions import lock_txn, may_unlock, promote_txn, seed_txn, switch_txn, unlock_txn
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import Peer, ReplicaId, Retarget, Role, voters

__all__ = ["Action", "GroupView", "Propose", "Transfer", "Write", "next_action", "ready_to_change"]


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a raft group as its leader knows it."""

    me: ReplicaId
    term: int
    applied: Configuration
    newest: Configuration
    """The newest configuration in the log or snapshot, applied or not."""
    committed_in_term: bool
    """Whether an entry of this term is committed; until then a leader cannot know what is committed."""
    caught_up: frozenset[ReplicaId]
    """Replicas whose log is close enough to the leader's, including the leader."""
    answering: frozenset[ReplicaId]
    """Replicas that answered within an election timeout, including the leader."""
    commit_known: bool
    """Whether a quorum of the applied configuration has durably acknowledged that its entry is committed."""
    lock_mod: int = 0
    """Mod revision of the lock this leader put in this term; 0 if none, or if a later lock's outcome is unknown."""
    lock_outstanding: bool = False
    """Whether the outcome of one of this leader's lock transactions is unknown."""
    seeding: int = 0
    """Mod revision of the table record for which this leader logged its seed entry in this term."""


class Write(msgspec.Struct, frozen=True):
    """Run a transaction on the metastore."""

    what: str
    txn: Txn


class Propose(msgspec.Struct, frozen=True):
    """Log a configuration."""

    what: str
    configuration: Configuration


class Transfer(msgspec.Struct, frozen=True):
    """Hand leadership over to this replica."""

    to: ReplicaId


Action = Write | Propose | Transfer


def next_action(
    view: PartitionView, group: GroupView, *, keys: PartitionKeys, mode: Retarget, table: Compare
) -> Action | None:
    """Return the next action, or None if there is nothing to do or another event must come first."""
    applied = group.applied
    if not group.committed_in_term or group.newest != applied:
        return None
    if view.stable is None:
        return _seed(group, keys=keys, table=table) if view.pending is None and view.lock is None else None
    if applied.joint:
        return _in_joint(group)
    if view.pending is not None and view.pending_mod == applied.token:
        if not group.commit_known:
            return None
        return Write("switch", switch_txn(view, applied.peers, keys=keys, token=applied.token, table=table))
    if 0 < view.pending_mod < applied.token:
        return None  # pending is older than the last completed change: the view is stale, or etcd was restored
    if view.planned is not None and view.lock is None and mode is not Retarget.QUEUE:
        return Write("promote", promote_txn(view, keys=keys, table=table))
    if (staging := _stage(view, applied)) is not None:
        return staging
    if view.pending is None or not ready_to_change(view.pending.head, group):
        return _unlock(view, group, keys=keys, table=table)
    return _change(view, group, view.pending.head, keys=keys, table=table)


def _seed(group: GroupView, *, keys: PartitionKeys, table: Compare) -> Action | None:
    """Publish the configuration that raft runs, once an entry of this term confirms it."""
    applied, token = group.applied, table.operand
    assert isinstance(token, int)
    if applied.joint:
        return _in_joint(group)
    if applied.token != token or applied.staged or group.seeding != token:
        # If the configuration already has this token from another metastore, first log token 0, so that the seed
        # entry can be recognized.
        return Propose("seed", Configuration(applied.peers, token=token if applied.token != token else 0))
    if not group.commit_known:
        return None
    return Write("seed", seed_txn(applied.peers, keys=keys, table=table))


def _in_joint(group: GroupView) -> Action | None:
    """Leave joint, or hand over to a voter that stays."""
    if any(peer.id == group.me for peer in voters(group.applied.peers)):
        return Propose("leave", msgspec.structs.replace(group.applied, outgoing=()))
    return _transfer(voters(group.applied.peers), group)


def _stage(view: PartitionView, applied: Configuration) -> Action | None:
    """Stage the new replicas of head(pending) as learners, and unstage all others."""
    present = {peer.id for peer in applied.peers}
    head = view.pending.head if view.pending is not None else ()
    wanted = tuple(msgspec.structs.replace(peer, role=Role.LEARNER) for peer in head if peer.id not in present)
    if wanted == applied.staged:
        return None
    return Propose("stage", msgspec.structs.replace(applied, staged=wanted))


def ready_to_change(target: Iterable[Peer], group: GroupView) -> bool:
    """Whether added and promoted peers are caught up and answer, and a majority of the target's voters answers.

    A joint configuration whose incoming half has no quorum would leave the group without a leader.
    """
    target = tuple(target)
    before = {peer.id: peer.role for peer in group.applied.peers}
    changed = {peer.id for peer in target if _gains(peer, before.get(peer.id))}
    return changed <= group.caught_up and changed <= group.answering and is_majority(group.answering, voters(target))


def _gains(peer: Peer, before: Role | None) -> bool:
    return before is None or (peer.role is Role.VOTER and before is Role.LEARNER)


def _unlock(view: PartitionView, group: GroupView, *, keys: PartitionKeys, table: Compare) -> Action | None:
    """Remove a lock that protects nothing, so that the operator can replace pending."""
    if view.lock is None or not may_unlock(
        view.lock,
        term=group.term,
        committed_in_term=group.committed_in_term,
        final_outstanding=group.lock_outstanding,
        in_joint=group.newest.joint,
        newest_token=group.newest.token,
    ):
        return None
    return Write("unlock", unlock_txn(view, keys=keys, table=table))


def _change(
    view: PartitionView,
    group: GroupView,
    target: tuple[Peer, ...],
    *,
    keys: PartitionKeys,
    table: Compare,
) -> Action | None:
    """Hand over if this leader does not vote in the target; otherwise lock, then log the change."""
    if all(peer.id != group.me for peer in voters(target)):
        staying = {peer.id for peer in voters(group.applied.peers)}
        transfer = _transfer((peer for peer in voters(target) if peer.id in staying), group)
        if transfer is not None:
            return transfer
    if view.lock is None or not group.lock_mod or view.lock_mod != group.lock_mod:
        return Write("lock", lock_txn(view, keys=keys, term=group.term, table=table))
    return Propose("final", _final(group.applied, target, token=view.pending_mod))


def _final(applied: Configuration, target: tuple[Peer, ...], *, token: int) -> Configuration:
    """Return a joint configuration if the voters change, else a plain one."""
    before, after = voters(applied.peers), voters(target)
    same = {peer.id for peer in before} == {peer.id for peer in after}
    return Configuration(peers=target, outgoing=() if same else before, token=token)


def _transfer(candidates: Iterable[Peer], group: GroupView) -> Transfer | None:
    """Hand over to the first candidate that is caught up and answers."""
    for peer in sorted(candidates):
        if peer.id in group.caught_up and peer.id in group.answering and peer.id != group.me:
            return Transfer(peer.id)
    return None

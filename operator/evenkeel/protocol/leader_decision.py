"""What the leader of a raft group does next to carry out a rebalance: one pure decision, taken again after every event.

The stages of one change, each of which may be interrupted and taken up by any later leader:

    catch up    stage head(pending)'s newcomers as learners; unstage everyone it does not name
    hand over   a leader that is not a voter of the target gives way to one that votes in both, before the lock
    lock        freeze pending, so that what follows is carried out to the end
    final       log the change: joint, or learners only, or empty; it carries pending's mod revision, the token
    leave       end joint; by a leader that stays, so an outgoing one hands over inside joint and never leaves
    switch      record the applied configuration as stable, once a quorum knows that it is committed

One more stage begins where a ready table has no stable, which is so only after the metastore was adopted:

    seed        end joint, unstage everyone, log the configuration once more with the record's mod revision as its
                token; when that is committed, record it as stable. The entry proves that this leader led after it saw
                that stable is missing: one that was deposed long ago could record a configuration long gone.

Nothing here decides by what was done before, only by what is: the metastore's keys, the newest configuration, and who
answers. That is why a crash needs no recovery of its own.
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
    """What a leader knows of its own group."""

    me: ReplicaId
    term: int
    applied: Configuration
    newest: Configuration
    """The newest configuration in log or snapshot, whether applied or not."""
    committed_in_term: bool
    """Whether an entry of this term is committed; before that a leader knows nothing for certain."""
    caught_up: frozenset[ReplicaId]
    """Replicas whose log is close enough to the leader's, itself included."""
    answering: frozenset[ReplicaId]
    """Replicas that answered within an election timeout, itself included."""
    commit_known: bool
    """Whether a quorum of the applied configuration has durably acknowledged that its entry is committed."""
    lock_mod: int = 0
    """Mod revision of the lock this leader put in this term, 0 if none or if a later transaction's outcome is open."""
    lock_outstanding: bool = False
    """Whether the outcome of a lock transaction of its own is open."""
    seeding: int = 0
    """Mod revision of the table's record for which this leader logged its configuration anew in this term."""


class Write(msgspec.Struct, frozen=True):
    """Run a transaction on the metastore."""

    what: str
    txn: Txn


class Propose(msgspec.Struct, frozen=True):
    """Log a configuration; `final` ones are followed by a switch, others only stage learners."""

    what: str
    configuration: Configuration


class Transfer(msgspec.Struct, frozen=True):
    """Hand leadership to this replica."""

    to: ReplicaId


Action = Write | Propose | Transfer


def next_action(
    view: PartitionView, group: GroupView, *, keys: PartitionKeys, mode: Retarget, table: Compare
) -> Action | None:
    """The one thing to do now, or None when there is nothing to do or something must arrive first."""
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
        return None  # a pending older than what the group has carried out: the view, or etcd itself, went back in time
    if view.planned is not None and view.lock is None and mode is not Retarget.QUEUE:
        return Write("promote", promote_txn(view, keys=keys, table=table))
    if (staging := _stage(view, applied)) is not None:
        return staging
    if view.pending is None or not ready_to_change(view.pending.head, group):
        return _release(view, group, keys=keys, table=table)
    return _change(view, group, view.pending.head, keys=keys, table=table)


def _seed(group: GroupView, *, keys: PartitionKeys, table: Compare) -> Action | None:
    """Publish the configuration that raft runs, once it is certain that this leader knows it."""
    applied, token = group.applied, table.operand
    assert isinstance(token, int)
    if applied.joint:
        return _in_joint(group)
    if applied.token != token or applied.staged or group.seeding != token:
        # One that has this token already, from another metastore, would not be told from the entry to be logged.
        return Propose("seed", Configuration(applied.peers, token=token if applied.token != token else 0))
    if not group.commit_known:
        return None
    return Write("seed", seed_txn(applied.peers, keys=keys, table=table))


def _in_joint(group: GroupView) -> Action | None:
    """Leave joint, or give way to someone who stays."""
    if any(peer.id == group.me for peer in voters(group.applied.peers)):
        return Propose("leave", msgspec.structs.replace(group.applied, outgoing=()))
    return _transfer(voters(group.applied.peers), group)


def _stage(view: PartitionView, applied: Configuration) -> Action | None:
    """Fill the newcomers of head(pending), and drop learners that nobody asks for any more."""
    present = {peer.id for peer in applied.peers}
    head = view.pending.head if view.pending is not None else ()
    wanted = tuple(msgspec.structs.replace(peer, role=Role.LEARNER) for peer in head if peer.id not in present)
    if wanted == applied.staged:
        return None
    return Propose("stage", msgspec.structs.replace(applied, staged=wanted))


def ready_to_change(target: Iterable[Peer], group: GroupView) -> bool:
    """Whether every peer that is added or promoted is caught up and answers, and so does a majority of the voters.

    Logging a joint configuration whose new half cannot decide would leave the group without a leader for good.
    """
    target = tuple(target)
    before = {peer.id: peer.role for peer in group.applied.peers}
    changed = {peer.id for peer in target if _gains(peer, before.get(peer.id))}
    return changed <= group.caught_up and changed <= group.answering and is_majority(group.answering, voters(target))


def _gains(peer: Peer, before: Role | None) -> bool:
    return before is None or (peer.role is Role.VOTER and before is Role.LEARNER)


def _release(view: PartitionView, group: GroupView, *, keys: PartitionKeys, table: Compare) -> Action | None:
    """Take a lock away that protects nothing, so that the operator can change its mind."""
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
    """Hand over if this leader leaves, then lock, then log the change."""
    if all(peer.id != group.me for peer in voters(target)):
        staying = {peer.id for peer in voters(group.applied.peers)}
        transfer = _transfer((peer for peer in voters(target) if peer.id in staying), group)
        if transfer is not None:
            return transfer
    if view.lock is None or not group.lock_mod or view.lock_mod != group.lock_mod:
        return Write("lock", lock_txn(view, keys=keys, term=group.term, table=table))
    return Propose("final", _final(group.applied, target, token=view.pending_mod))


def _final(applied: Configuration, target: tuple[Peer, ...], *, token: int) -> Configuration:
    """Joint where the voters change; one plain entry where only learners do, or nothing does."""
    before, after = voters(applied.peers), voters(target)
    same = {peer.id for peer in before} == {peer.id for peer in after}
    return Configuration(peers=target, outgoing=() if same else before, token=token)


def _transfer(candidates: Iterable[Peer], group: GroupView) -> Transfer | None:
    """To the first candidate that is up to date and answers."""
    for peer in sorted(candidates):
        if peer.id in group.caught_up and peer.id in group.answering and peer.id != group.me:
            return Transfer(peer.id)
    return None

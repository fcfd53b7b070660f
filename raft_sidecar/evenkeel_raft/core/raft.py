"""The raft state machine: message dispatch, terms, timers and client requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from evenkeel_raft.core import election, follower_role, leader_role
from evenkeel_raft.core.confchange import apply_change
from evenkeel_raft.core.errors import Refusal, RefusedError
from evenkeel_raft.core.raft_messages import (
    Append,
    AppendResponse,
    CommitNotice,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    ReadRequest,
    ReadResponse,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from evenkeel_raft.core.raft_state import NEVER_DUE, Raft
from evenkeel_raft.core.raft_types import CONF, LEADER, NORMAL, ConfChange, Entry, encode_conf_change

__all__ = [
    "HANDLERS",
    "apply_confs",
    "misdirected",
    "propose",
    "propose_conf",
    "propose_many",
    "read_index",
    "run_due",
    "update_term",
]

Handler = Callable[[Raft, Any], Refusal | None]


def _on_snapshot_request(r: Raft, m: SnapshotRequest) -> None:
    (leader_role if r.role == LEADER else follower_role).on_snapshot_request(r, m)


HANDLERS: Final[dict[type[Message], Handler]] = {
    Append: follower_role.on_append,
    AppendResponse: leader_role.on_append_response,
    CommitNotice: follower_role.on_commit_notice,
    Heartbeat: follower_role.on_heartbeat,
    HeartbeatResponse: leader_role.on_heartbeat_response,
    InstallSnapshot: follower_role.on_install_snapshot,
    ReadRequest: leader_role.on_read_request,
    ReadResponse: follower_role.on_read_response,
    SnapshotRequest: _on_snapshot_request,
    TimeoutNow: election.on_timeout_now,
    VoteRequest: election.on_vote_request,
    VoteResponse: election.on_vote_response,
}
_FROM_LEADER: Final = (Append, CommitNotice, Heartbeat, InstallSnapshot)


def misdirected(r: Raft, m: Message) -> Refusal:
    """Return why a message is not addressed to this replica."""
    if m.group != r.group:
        return Refusal.WRONG_GROUP
    if m.receiver != r.replica:
        return Refusal.WRONG_REPLICA
    return Refusal.OLD_GENERATION if m.generation < r.generation else Refusal.NEW_GENERATION


def _is_from_leader(m: Message) -> bool:
    return isinstance(m, _FROM_LEADER) and not (isinstance(m, InstallSnapshot) and m.repair)


def update_term(r: Raft, m: Message) -> bool:
    """Handle a message of another term; returns whether to process the message further."""
    if m.term < r.term:
        _answer_stale_term(r, m)
        return False
    if isinstance(m, VoteRequest):
        if not m.transfer and election.in_lease(r):
            return False
        if m.pre:
            return True
    elif isinstance(m, VoteResponse) and m.pre and m.granted:
        return True  # carries the term of the election it is for, which no replica has entered yet
    r.become_follower(m.term, m.sender if _is_from_leader(m) else 0)
    return True


def _answer_stale_term(r: Raft, m: Message) -> None:
    """Send the current term to a leader or pre-candidate of an older one; other senders learn it elsewhere."""
    if _is_from_leader(m):
        r.messages.append(
            AppendResponse(r.group, r.generation, r.replica, m.sender, r.term, 0, True, 0, 0, r.durable_commit)
        )
    elif isinstance(m, VoteRequest) and m.pre:
        r.messages.append(election.vote_response(r, m.sender, r.term, pre=True, granted=False))


def run_due(r: Raft) -> None:
    """Run the timers that are due at this tick and schedule the next ones."""
    r.due = NEVER_DUE
    if r.quiesced:
        return
    if r.role == LEADER:
        leader_role.tick_leader(r)
    else:
        follower_role.tick_follower(r)
        election.tick_election(r)
    r.schedule_tick(_next_due(r))


def _next_due(r: Raft) -> int:
    settings = r.settings
    if r.role == LEADER:
        due = min(r.heartbeat_since + settings.heartbeat_ticks, r.election_since + settings.election_ticks)
        return min(due, r.transfer_deadline) if r.transfer_to else due
    if r.log.needs_restore or not r.forwarded.idle:
        return r.ticks.now + 1
    return r.election_since + r.timeout


# Requests


def propose(r: Raft, data: bytes) -> int:
    """Append one entry and return its index."""
    log = r.log
    if not r.accepting or r.quiesced or log.end - log.applied_end >= r.settings.max_unapplied_bytes:
        _check_room(r)
    index = log.last_index + 1
    log.append(Entry(index, r.term, NORMAL, data))
    r.replicate_due = True
    return index


def propose_many(r: Raft, payloads: Sequence[bytes]) -> int:
    """Append entries and return the index of the last one."""
    _check_room(r)
    log, term = r.log, r.term
    first = log.last_index + 1
    log.extend([Entry(index, term, NORMAL, data) for index, data in enumerate(payloads, first)])
    r.replicate_due = True
    return log.last_index


def _check_room(r: Raft) -> None:
    """Refuse a proposal if this replica does not accept any or its apply backlog is full."""
    if not r.accepting:
        r.check_accepting()
    if r.quiesced:
        r.wake()
    log = r.log
    if log.end - log.applied_end >= r.settings.max_unapplied_bytes:
        raise RefusedError(Refusal.BUSY)


def propose_conf(r: Raft, change: ConfChange) -> int:
    """Append a configuration change and return its index.

    It must be valid for the applied configuration, and no other change may be unapplied. A change of an earlier term
    may be in the log without being known as committed; applying an entry of the current term rules that out.
    """
    r.check_accepting()
    log = r.log
    if log.applied < r.pending_conf_index or log.conf_in(r.confs.index, log.last_index):
        raise RefusedError(Refusal.CHANGE_PENDING)
    apply_change(r.confs.current, change)
    r.wake()
    index = log.last_index + 1
    log.append(Entry(index, r.term, CONF, encode_conf_change(change)))
    r.pending_conf_index = index
    r.replicate_due = True
    return index


def read_index(r: Raft, context: int) -> None:
    """Request an index at which a read is linearizable; a follower forwards the request to the leader."""
    r.wake()
    if r.role == LEADER:
        leader_role.read(r, context, r.replica)
    elif r.leader:
        follower_role.forward_read(r, context)
    else:
        raise RefusedError(Refusal.NO_LEADER)


def apply_confs(r: Raft, upto: int) -> None:
    """Put configurations into effect whose entries are applied."""
    log = r.log
    while log.conf_in(r.confs.index, upto):
        after = r.confs.index
        index = next(index for index in log.conf_indexes if index > after)
        r.confs.apply(log.entry(index))
        if r.role == LEADER:
            leader_role.follow_conf(r)

"""The follower: handling of a leader's messages."""

from __future__ import annotations

from evenkeel_raft.core.errors import InvariantError, Refusal
from evenkeel_raft.core.raft_log import Log
from evenkeel_raft.core.raft_messages import (
    Append,
    AppendResponse,
    CommitNotice,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    ReadRequest,
    ReadResponse,
    SnapshotRequest,
)
from evenkeel_raft.core.raft_state import Raft
from evenkeel_raft.core.raft_types import FOLLOWER, ReadState, SnapshotMeta

__all__ = [
    "forward_read",
    "on_append",
    "on_commit_notice",
    "on_heartbeat",
    "on_install_snapshot",
    "on_read_response",
    "on_snapshot_request",
    "ping_leader",
    "report_commit",
    "tick_follower",
]


def follow(r: Raft, leader: int) -> None:
    """Accept the sender as the leader of the current term."""
    if r.leader != leader:
        if r.leader:
            raise InvariantError(f"replicas {r.leader} and {leader} both lead term {r.term}")
        if r.role != FOLLOWER:
            r.become_follower(r.term, leader)
        r.leader, r.soft_state_changed = leader, True
    r.election_since = r.leader_contact = r.ticks.now


def on_append(r: Raft, m: Append) -> Refusal | None:
    """Append the leader's entries, or reject them with a hint where the logs might match."""
    entries, prev = m.entries, m.prev_index
    last_new = prev + len(entries)
    if entries and (entries[0].index != prev + 1 or entries[-1].index != last_new):
        return Refusal.MALFORMED
    if r.leader != m.sender:
        follow(r, m.sender)
    r.election_since = r.leader_contact = r.ticks.now
    if m.commit > r.leader_commit:  # noqa: PLR1730  every entry passes here
        r.leader_commit = m.commit
    log = r.log
    if prev < log.committed:
        # Committed entries match by definition. Acknowledge them, so that the leader continues after them.
        _acknowledge(r, m.sender, log.committed)
    elif log.maybe_append(prev, m.prev_term, entries):
        if m.commit > log.committed:
            r.commit_to(min(m.commit, last_new))
        _acknowledge(r, m.sender, last_new)
    else:
        hint = log.find_conflict_by_term(prev, m.prev_term)
        r.messages.append(
            AppendResponse(
                r.group, r.generation, r.replica, m.sender, r.term, prev, True, hint, log.term(hint), r.durable_commit
            )
        )
    return None


def _acknowledge(r: Raft, leader: int, index: int) -> None:
    r.responses.append(AppendResponse(r.group, r.generation, r.replica, leader, r.term, index, False, 0, 0, 0))


def on_commit_notice(r: Raft, m: CommitNotice) -> None:
    """Advance the commit index."""
    follow(r, m.sender)
    r.commit_to(m.commit)


def on_heartbeat(r: Raft, m: Heartbeat) -> None:
    """Confirm the leader; or, if the leader quiesces and nothing is outstanding, quiesce without a response.

    A quiesced leader ignores responses to earlier heartbeats, so this replica cannot assume that its last reported
    `stateless` arrived. It quiesces only if the heartbeat shows that the leader knows the current value. A leader of
    the previous release does not send it; then the last reported value is used.
    """
    follow(r, m.sender)
    r.commit_to(m.commit)
    if m.committed > r.leader_commit:  # noqa: PLR1730  heartbeats of thousands of groups pass here
        r.leader_commit = m.committed
    log, stateless = r.log, r.log.stateless
    known = r.reported_stateless if m.stateless is None else m.stateless
    idle = log.idle and r.forwarded.idle and known == stateless
    if m.quiesce and m.commit == log.last_index and idle:
        r.quiesce()
        r.schedule_tick(r.ticks.now + 1)
        return
    r.reported_stateless = stateless
    r.messages.append(
        HeartbeatResponse(r.group, r.generation, r.replica, m.sender, r.term, m.context, r.durable_commit, stateless)
    )


def ping_leader(r: Raft) -> None:
    """Make the leader send a heartbeat even if it is quiesced; the response then reports this replica's state.

    The ping is a read request with the number 0, which no real read has.
    """
    r.messages.append(ReadRequest(r.group, r.generation, r.replica, r.leader, r.term, 0))


def report_commit(r: Raft) -> None:
    """Report the new commit index of a configuration entry to the leader once it is durable."""
    if r.role == FOLLOWER and r.leader:
        r.responses.append(HeartbeatResponse(r.group, r.generation, r.replica, r.leader, r.term, 0, 0))


def on_install_snapshot(r: Raft, m: InstallSnapshot) -> None:
    """Replace the log by a snapshot whose files are in place, or restore a damaged state machine and keep the log.

    A `repair` snapshot, sent by a member that does not lead, only restores the state machine. It is used only if this
    log holds its last entry and that entry is known to be committed: then the state equals applying this log up to it.
    The configuration stays the log's.
    """
    log, meta = r.log, m.meta
    if m.repair:
        if log.term(meta.index) == meta.term and meta.index <= log.committed:
            _restore_state(log, meta)
        return
    follow(r, m.sender)
    if log.term(meta.index) == meta.term:
        r.commit_to(meta.index)
        _restore_state(log, meta)
    elif meta.index > log.committed:
        log.restore(meta)
        r.confs.restore(meta)
        r.write_due = True
    _acknowledge(r, m.sender, log.committed)


def _restore_state(log: Log, meta: SnapshotMeta) -> None:
    if log.needs_restore:
        log.needs_restore = False
        log.applying, log.restore_due = meta.index, meta


# Reads and repair


def forward_read(r: Raft, context: int) -> None:
    """Forward a read to the leader."""
    deadline = r.ticks.now + r.settings.election_ticks
    number = r.forwarded.add(context, deadline=deadline)
    r.schedule_tick(deadline)
    r.messages.append(ReadRequest(r.group, r.generation, r.replica, r.leader, r.term, number))


def on_read_response(r: Raft, m: ReadResponse) -> None:
    """Return the leader's read index to the caller, unless the read expired."""
    context = r.forwarded.answered(m.context)
    if context is not None:
        r.read_states.append(ReadState(context, m.index))


def on_snapshot_request(r: Raft, m: SnapshotRequest) -> None:
    """Offer a snapshot to a leader that lost its state, if its log can continue from it."""
    if m.sender != r.leader or r.log.stateless or r.log.applied < m.index:
        return
    if not r.leader_snapshot_index:
        r.snapshots_wanted.append(m.sender)
    r.leader_snapshot_index = m.index


def tick_follower(r: Raft) -> None:
    """Fail reads that the leader did not answer in time; repeat the snapshot request while the state is missing."""
    now = r.ticks.now
    if not r.forwarded.idle:
        r.read_states += [ReadState(context, 0) for context in r.forwarded.expire(now)]
    if r.log.needs_restore and r.leader and now % r.settings.election_ticks == 0:
        r.messages.append(SnapshotRequest(r.group, r.generation, r.replica, r.leader, r.term, r.log.offset))

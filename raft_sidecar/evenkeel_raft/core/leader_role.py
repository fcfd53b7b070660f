"""The leader: replication, commit, reads, leadership transfer and quiescence.

`replicate` runs once per `ready` and batches everything proposed, acknowledged or committed since the last one into one
message per member. Messages may leave before the leader's own disk has the entries; the leader counts its own copy only
once it is durable.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from evenkeel_raft.core.errors import InvariantError, Refusal, RefusedError
from evenkeel_raft.core.quorum import has_quorum
from evenkeel_raft.core.raft_messages import (
    Append,
    AppendResponse,
    CommitNotice,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadRequest,
    ReadResponse,
    SnapshotRequest,
    TimeoutNow,
)
from evenkeel_raft.core.raft_state import Raft
from evenkeel_raft.core.raft_types import LEADER, Entry, ReadState
from evenkeel_raft.core.readonly import Read
from evenkeel_raft.core.tracker import PROBE, REPLICATE, Progress

__all__ = [
    "broadcast_heartbeat",
    "can_quiesce",
    "follow_conf",
    "is_ping_from_non_member",
    "is_stale_heartbeat_response",
    "maybe_commit",
    "on_append_response",
    "on_heartbeat_response",
    "on_read_request",
    "on_snapshot_request",
    "quiesce_group",
    "quorum_without",
    "read",
    "replicate",
    "request_state",
    "start_transfer",
    "tick_leader",
]


_NOTHING: Final[list[Entry]] = []  # shared; must not be mutated
_REQUESTS_PER_MEMBER: Final = 120

# Sending


def replicate(r: Raft) -> None:
    """Send each member the entries and commit index that flow control allows."""
    r.replicate_due = False
    log = r.log
    committed, last = log.committed, log.last_index
    first, entries = 0, _NOTHING
    for pr in r.tracker.peers:
        if pr.state == REPLICATE:
            while pr.next <= last and (pr.next == pr.match + 1 or _has_room(r, pr)):
                if pr.next <= log.offset:
                    _want_snapshot(r, pr)
                    break
                if pr.next != first:  # members at the same index share one list
                    first = pr.next
                    entries = log.batch(first, r.settings.max_append_bytes)
                _send_append(r, pr, entries)
            known = committed if committed < pr.match else pr.match
            if pr.sent_commit < known:
                pr.sent_commit = known
                r.messages.append(CommitNotice(r.group, r.generation, r.replica, pr.replica, r.term, known))
        elif pr.state == PROBE and not pr.paused:
            _send_probe(r, pr)


def _has_room(r: Raft, pr: Progress) -> bool:
    last, settings = pr.next - 1, r.settings
    return last - pr.match < settings.max_inflight_entries and r.log.size(pr.match, last) < settings.max_inflight_bytes


def _send_append(r: Raft, pr: Progress, entries: list[Entry]) -> None:
    """Send entries from `pr.next` on; the log must hold the entry before it."""
    prev = pr.next - 1
    prev_term = r.log.term(prev)
    commit = r.log.committed
    r.messages.append(Append(r.group, r.generation, r.replica, pr.replica, r.term, prev, prev_term, commit, entries))
    if pr.state == REPLICATE:
        last = prev + len(entries)
        pr.next = last + 1
        pr.sent_commit = commit if commit < last else last


def _send_probe(r: Raft, pr: Progress) -> None:
    if pr.next <= r.log.offset:
        _want_snapshot(r, pr)
        return
    _send_append(r, pr, r.log.batch(pr.next, r.settings.max_append_bytes))
    pr.paused = True


def _want_snapshot(r: Raft, pr: Progress) -> None:
    pr.await_snapshot()
    if not pr.snapshot_wanted:
        pr.snapshot_wanted = True
        r.snapshots_wanted.append(pr.replica)


def broadcast_heartbeat(r: Raft, *, quiesce: bool = False) -> None:
    """Send heartbeats to all members and start the read round that is due.

    Reads are answered here too: a single voter confirms them alone and receives no response that would do so later.
    """
    r.heartbeat_since = r.ticks.now
    r.reads.round_due = False
    commit, context = r.log.committed, r.reads.round
    me = r.tracker.me
    if me is not None:
        me.read_ack = context
    for pr in r.tracker.peers:
        known = min(commit, pr.match)
        r.messages.append(
            Heartbeat(
                r.group, r.generation, r.replica, pr.replica, r.term, known, context, quiesce, commit, pr.stateless
            )
        )
    answer_reads(r)


def tick_leader(r: Raft) -> None:
    """Send due heartbeats; step down without a quorum; abandon a leadership transfer after its deadline."""
    now, ticks = r.ticks.now, r.settings.election_ticks
    if r.transfer_to and now >= r.transfer_deadline:
        r.transfer_to = 0
        r.update_accepting()
    if now - r.election_since >= ticks:
        r.election_since = now
        if not r.tracker.quorum_active(r.confs.current, since=now - ticks):
            r.become_follower(r.term, 0)
            return
        if r.log.needs_restore:
            request_state(r)
    if now - r.heartbeat_since >= r.settings.heartbeat_ticks:
        broadcast_heartbeat(r)


# Acknowledgements


def on_append_response(r: Raft, m: AppendResponse) -> None:
    """Update a member's progress."""
    pr = r.tracker.progress.get(m.sender)
    if pr is None:
        return
    pr.last_contact = r.ticks.now
    if m.commit > pr.commit:  # noqa: PLR1730  every acknowledgement passes here
        pr.commit = m.commit
    if m.rejected:
        _on_rejection(r, pr, m)
        return
    pr.stateless = m.stateless
    log, index = r.log, m.index
    if index > log.last_index:
        raise InvariantError(f"replica {m.sender} acknowledged {index}; the leader's log ends at {log.last_index}")
    advanced = pr.acknowledge(index)
    if pr.state == REPLICATE:
        if not advanced:
            return
    elif index == pr.match and (pr.state == PROBE or index >= log.offset):
        # A response to a probe shows where the logs match, even if `match` did not advance; so does a snapshot.
        pr.replicate()
    r.replicate_due = True
    if index > log.committed:
        maybe_commit(r)
    if r.transfer_to:
        _continue_transfer(r, pr)


def _on_rejection(r: Raft, pr: Progress, m: AppendResponse) -> None:
    hint = r.log.find_conflict_by_term(m.hint_index, m.hint_term) if m.hint_term > 0 else m.hint_index
    if pr.reject(m.index, hint):
        r.replicate_due = True


def on_heartbeat_response(r: Raft, m: HeartbeatResponse) -> None:
    """Record contact with a member, and recover from a lost probe or acknowledgement."""
    pr = r.tracker.progress.get(m.sender)
    if pr is None:
        return
    pr.last_contact, pr.stateless = r.ticks.now, m.stateless
    pr.commit = max(pr.commit, m.commit)
    if m.context > pr.read_ack:
        pr.read_ack = m.context
        answer_reads(r)
    if pr.state == PROBE:
        pr.paused = False
        r.replicate_due = True
    elif pr.state == REPLICATE and pr.match < r.log.last_index:
        # Sent entries may be lost. An empty append makes the member report what is missing.
        if pr.next > r.log.offset:
            _send_append(r, pr, _NOTHING)
        else:
            _want_snapshot(r, pr)
        r.replicate_due = True
    if r.transfer_to:
        _continue_transfer(r, pr)


def maybe_commit(r: Raft) -> None:
    """Commit what a quorum holds durably, if it is of this term. An older entry may still be replaced."""
    index = r.tracker.matched()
    log = r.log
    if index <= log.committed or index < r.term_start:
        return
    first_of_term = log.committed < r.term_start
    r.commit_to(index)
    r.replicate_due = True
    if first_of_term:
        r.reads.first_commit(index)


# Configurations


def follow_conf(r: Raft) -> None:
    """Switch to a configuration that was just applied; a leader that is no longer a voter steps down."""
    conf = r.confs.current
    if not conf.is_voter(r.replica):
        r.become_follower(r.term, 0)
        return
    r.tracker.configure(conf, r.replica, next_index=r.log.last_index + 1, now=r.ticks.now)
    if r.transfer_to and not conf.is_voter(r.transfer_to):
        r.transfer_to = 0
    r.update_accepting()
    r.replicate_due = True
    maybe_commit(r)
    answer_reads(r)


# Leadership transfer


def start_transfer(r: Raft, to: int) -> None:
    """Hand leadership over to a voter once its log is complete. Proposals are refused until then or the deadline."""
    if not r.confs.current.is_voter(to):
        raise RefusedError(Refusal.NOT_A_VOTER, detail=f"replica {to}")
    if to in (r.replica, r.transfer_to):
        return
    r.transfer_to = to
    r.transfer_deadline = r.ticks.now + r.settings.election_ticks
    r.update_accepting()
    r.replicate_due = True
    _continue_transfer(r, r.tracker.progress[to])


def _continue_transfer(r: Raft, pr: Progress) -> None:
    if r.transfer_to == pr.replica and pr.match == r.log.last_index:
        r.messages.append(TimeoutNow(r.group, r.generation, r.replica, pr.replica, r.term))


# Reads


def read(r: Raft, context: int, origin: int) -> None:
    """Record a read; it is answered once a quorum confirms that this replica still leads."""
    request = Read(context, origin)
    if r.log.committed < r.term_start:
        r.reads.wait(request)
    else:
        r.reads.add(request, r.log.committed)


def on_read_request(r: Raft, m: ReadRequest) -> None:
    """Record a follower's read."""
    if r.role == LEADER:
        read(r, m.context, m.sender)


def answer_reads(r: Raft) -> None:
    """Answer the reads that a quorum confirmed."""
    if r.role != LEADER or r.reads.idle:
        return
    for done in r.reads.confirmed(r.tracker.read_confirmed()):
        if done.origin == r.replica:
            r.read_states.append(ReadState(done.context, done.index))
        else:
            r.messages.append(
                ReadResponse(r.group, r.generation, r.replica, done.origin, r.term, done.context, done.index)
            )


# Snapshots and quiescence


def on_snapshot_request(r: Raft, m: SnapshotRequest) -> None:
    """Offer a snapshot to a member that lost its state but not its log; replication continues.

    A snapshot below the member's first entry is useless. The member repeats the request until this replica applied
    enough.
    """
    pr = r.tracker.progress.get(m.sender)
    if pr is None:
        return
    pr.last_contact, pr.stateless, pr.snapshot_from = r.ticks.now, True, m.index
    if not r.log.stateless and r.log.applied >= m.index and not pr.snapshot_wanted:
        pr.snapshot_wanted = True
        r.snapshots_wanted.append(pr.replica)


def request_state(r: Raft) -> None:
    """Request a snapshot from a member, because this leader lost its state.

    A leadership transfer is preferred, but may be impossible: a single voter with learners, or a joint configuration
    with one incoming voter. One member is asked at a time, and none while a snapshot is arriving. After
    `_REQUESTS_PER_MEMBER` requests, which leaves minutes to write a snapshot, the next member is asked.
    """
    if r.receiving:
        r.state_requests = 0
        return
    now, ticks, offset = r.ticks.now, r.settings.election_ticks, r.log.offset
    able = [
        pr.replica
        for pr in r.tracker.peers
        if not pr.stateless and pr.match >= offset and now - pr.last_contact < ticks
    ]
    if not able or r.transfer_to:
        return
    r.state_requests += 1
    if r.state_source not in able or r.state_requests > _REQUESTS_PER_MEMBER:
        r.state_source = next((replica for replica in able if replica > r.state_source), able[0])
        r.state_requests = 1
    r.messages.append(SnapshotRequest(r.group, r.generation, r.replica, r.state_source, r.term, offset))


def can_quiesce(r: Raft, lost: Collection[int]) -> bool:
    """Whether all logs are equal, committed and applied, and a quorum durably knows the configuration's commit.

    A leader without a quorum must stay awake, so that it steps down.
    """
    log = r.log
    if not quorum_without(r, lost):
        return False
    if r.transfer_to or not r.reads.idle or log.committed != log.last_index or not log.idle:
        return False
    if r.tracker.commit_known() < r.confs.index or r.confs.current.joint:
        return False
    return all(pr.replica in lost or (pr.match == log.last_index and not pr.snapshot_wanted) for pr in r.tracker.peers)


def quorum_without(r: Raft, lost: Collection[int]) -> bool:
    """Whether the applied configuration has a quorum without these members."""
    conf = r.confs.current
    return has_quorum(conf.voters, conf.outgoing, {*conf.members()} - {*lost})


def quiesce_group(r: Raft) -> None:
    """Quiesce the group. A member that cannot responds with the new round number, which no earlier response has."""
    r.reads.round += 1
    broadcast_heartbeat(r, quiesce=True)
    r.quiesce()


def is_stale_heartbeat_response(r: Raft, m: Message) -> bool:
    """Whether this is a response to a heartbeat sent before this leader quiesced.

    It must not wake the leader: if heartbeats and quiescing coincide, the group would never stay quiesced.
    """
    return type(m) is HeartbeatResponse and m.term == r.term and r.role == LEADER and m.context < r.reads.round


def is_ping_from_non_member(r: Raft, m: Message) -> bool:
    """Whether this is a ping (`ping_leader`) from a removed replica; it must not wake the group.

    A removed learner does not know that it was removed, and pings at every election timeout until it is deleted.
    """
    return type(m) is ReadRequest and m.context == 0 and m.term <= r.term and m.sender not in r.confs.current.members()

"""Elections: pre-vote, votes, and elections started by a leadership transfer.

A replica that heard from a leader within an election timeout ignores vote requests, so a removed or partitioned replica
cannot depose a leader. A leader steps down when it has no contact with a quorum for an election timeout
(`leader_role`). A replica votes for any candidate, whether or not it is in the replica's own configuration: the
candidate may know a newer one. A learner votes too: it may have been promoted without knowing it.

Vote requests and responses carry the sender's commit index. Without it a group can deadlock: a removed voter knows of
its removal and does not campaign, but its log is longer, so it rejects the candidate; and the candidate needs that vote
only because it does not know that the removal is committed.
"""

from __future__ import annotations

from evenkeel_raft.core.follower_role import ping_leader
from evenkeel_raft.core.quorum import LOST, WON, vote_result
from evenkeel_raft.core.raft_messages import TimeoutNow, VoteRequest, VoteResponse
from evenkeel_raft.core.raft_state import Raft
from evenkeel_raft.core.raft_types import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE

__all__ = [
    "campaign",
    "in_lease",
    "on_timeout_now",
    "on_vote_request",
    "on_vote_response",
    "promotable",
    "record_vote",
    "tick_election",
    "vote_response",
]


def promotable(r: Raft) -> bool:
    """Whether this replica may campaign: a voter that applied every configuration it knows to be committed."""
    log, confs = r.log, r.confs
    if not confs.current.is_voter(r.replica) or log.pending_snapshot is not None:
        return False
    return not log.conf_in(confs.index, log.committed)


def campaign(r: Raft, *, transfer: bool) -> None:
    """Campaign if allowed. A leadership transfer skips the pre-vote, because the leader requested the election."""
    if r.role == LEADER or not promotable(r):
        return
    if transfer:
        _start_election(r, transfer=True)
        return
    r.become_pre_candidate()
    _request_votes(r, pre=True, transfer=False)
    _tally(r)


def _start_election(r: Raft, *, transfer: bool) -> None:
    r.become_candidate()
    _request_votes(r, pre=False, transfer=transfer)


def _request_votes(r: Raft, *, pre: bool, transfer: bool) -> None:
    conf, log = r.confs.current, r.log
    term = r.term + 1 if pre else r.term
    commit, commit_term = log.committed, log.term(log.committed)
    # Real votes are requested only once term, own vote and log are durable. Otherwise a replica that crashes could
    # campaign again in the same term with a shorter log, and count votes that were granted for the longer one.
    out = r.messages if pre else r.responses
    for voter in sorted({*conf.voters, *conf.outgoing} - {r.replica}):
        out.append(
            VoteRequest(
                r.group, r.generation, r.replica, voter, term,
                log.last_index, log.last_term, pre, transfer, commit, commit_term,
            )
        )  # fmt: skip


def _tally(r: Raft) -> None:
    conf = r.confs.current
    result = vote_result(conf.voters, conf.outgoing, r.votes)
    if result == LOST:
        r.become_follower(r.term, 0)
    elif result == WON and r.role == PRE_CANDIDATE:
        _start_election(r, transfer=False)
    elif result == WON:
        r.become_leader()


def record_vote(r: Raft, voter: int, *, granted: bool) -> None:
    """Count a vote; only the first response of each voter counts."""
    r.votes.setdefault(voter, granted)
    _tally(r)


def in_lease(r: Raft) -> bool:
    """Whether a leader was in contact within the last election timeout."""
    return r.leader != 0 and r.ticks.now - r.election_since < r.settings.election_ticks


def on_vote_request(r: Raft, m: VoteRequest) -> None:
    """Grant or reject a vote or a pre-vote."""
    _learn_commit(r, m.commit, m.commit_term)
    free = r.vote == m.sender or (r.vote == 0 and r.leader == 0) or (m.pre and m.term > r.term)
    if not free or not r.log.is_up_to_date(m.last_index, m.last_term):
        r.messages.append(vote_response(r, m.sender, r.term, pre=m.pre, granted=False))
    elif m.pre:
        r.messages.append(vote_response(r, m.sender, m.term, pre=True, granted=True))
    else:
        r.vote, r.election_since = m.sender, r.ticks.now
        r.responses.append(vote_response(r, m.sender, m.term, pre=False, granted=True))


def vote_response(r: Raft, to: int, term: int, *, pre: bool, granted: bool) -> VoteResponse:
    """Build a vote response that carries this replica's commit index."""
    commit = r.log.committed
    return VoteResponse(r.group, r.generation, r.replica, to, term, pre, granted, commit, r.log.term(commit))


def _learn_commit(r: Raft, index: int, term: int) -> None:
    """Advance the commit index to another replica's, if this log holds the same entry.

    If that commits a configuration, the candidate stops campaigning: it would count votes by an outdated one.
    """
    if r.role == LEADER or index <= r.log.committed or r.log.term(index) != term:
        return
    r.commit_to(index)
    if r.role != FOLLOWER and not promotable(r):
        r.become_follower(r.term, 0)


def on_vote_response(r: Raft, m: VoteResponse) -> None:
    """Count a vote, if it belongs to the current campaign."""
    _learn_commit(r, m.commit, m.commit_term)
    if m.pre:
        current = r.role == PRE_CANDIDATE and m.term == (r.term + 1 if m.granted else r.term)
    else:
        current = r.role == CANDIDATE and m.term == r.term
    if current:
        record_vote(r, m.sender, granted=m.granted)


def on_timeout_now(r: Raft, m: TimeoutNow) -> None:
    """Campaign at the leader's request. A replica that is not `promotable` ignores it."""
    if r.role == FOLLOWER and m.sender == r.leader:
        campaign(r, transfer=True)


def tick_election(r: Raft) -> None:
    """Campaign after an election timeout. A member that may not campaign pings its leader, which may be quiesced."""
    now = r.ticks.now
    if now - r.election_since >= r.timeout:
        r.election_since = now
        r.reset_election_timeout()
        if r.leader and r.replica in r.confs.current.members() and not promotable(r):
            ping_leader(r)
        campaign(r, transfer=False)

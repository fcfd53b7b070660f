"""Elections: pre-vote, votes, and the hand-over a leader asks for.

A replica that heard from a leader within an election timeout ignores requests for votes, so a removed or partitioned
replica cannot unseat anybody; the leader itself gives up when it has not heard from a quorum for as long
(replication). Votes are given to whoever asks, member of one's own configuration or not: the asker may know a newer
one, and a learner that was promoted without knowing it may be the vote that is missing.

Both sides tell what they know to be committed. Otherwise a group can be stuck: a voter that was removed knows so, and
does not stand; it holds more of the log than the one who needs its vote, and refuses; and that one needs it only
because it does not know that the removal is committed.
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
    """Whether this replica may stand: a voter that has applied every configuration it knows to be committed."""
    log, confs = r.log, r.confs
    if not confs.current.is_voter(r.replica) or log.pending_snapshot is not None:
        return False
    return not log.conf_in(confs.index, log.committed)


def campaign(r: Raft, *, transfer: bool) -> None:
    """Stand for election if allowed; a leader's hand-over needs no pre-vote, for the leader is known to agree."""
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
    # A vote in earnest is asked for only once term, own vote and log are durable: a replica that crashed and forgot
    # could ask again in the same term with a shorter log, and count answers that were given to the longer one.
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
    """Count a vote; the first answer of each voter stands."""
    r.votes.setdefault(voter, granted)
    _tally(r)


def in_lease(r: Raft) -> bool:
    """Whether a leader was heard of too recently for anybody to stand against it."""
    return r.leader != 0 and r.ticks.now - r.election_since < r.settings.election_ticks


def on_vote_request(r: Raft, m: VoteRequest) -> None:
    """Give a vote, or (`pre`) say whether it would be given."""
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
    """Return an answer, with what this replica knows to be committed."""
    commit = r.log.committed
    return VoteResponse(r.group, r.generation, r.replica, to, term, pre, granted, commit, r.log.term(commit))


def _learn_commit(r: Raft, index: int, term: int) -> None:
    """Take over what another replica knows to be committed, if this log holds the very entry.

    Who learns so of a configuration stops campaigning: the votes were asked for, and would be counted, by another one.
    """
    if r.role == LEADER or index <= r.log.committed or r.log.term(index) != term:
        return
    r.commit_to(index)
    if r.role != FOLLOWER and not promotable(r):
        r.become_follower(r.term, 0)


def on_vote_response(r: Raft, m: VoteResponse) -> None:
    """Count a vote, if it answers the question this replica is asking now."""
    _learn_commit(r, m.commit, m.commit_term)
    if m.pre:
        asked = r.role == PRE_CANDIDATE and m.term == (r.term + 1 if m.granted else r.term)
    else:
        asked = r.role == CANDIDATE and m.term == r.term
    if asked:
        record_vote(r, m.sender, granted=m.granted)


def on_timeout_now(r: Raft, m: TimeoutNow) -> None:
    """Take over from the leader. One who was removed or demoted meanwhile is not promotable and stays."""
    if r.role == FOLLOWER and m.sender == r.leader:
        campaign(r, transfer=True)


def tick_election(r: Raft) -> None:
    """Stand, unless a leader was heard of in time; one who may not stand calls its leader, which may be asleep."""
    now = r.ticks.now
    if now - r.election_since >= r.timeout:
        r.election_since = now
        r.reset_election_timeout()
        if r.leader and r.replica in r.confs.current.members() and not promotable(r):
            ping_leader(r)
        campaign(r, transfer=False)

"""The state of one replica of one group, and the transitions between its roles.

    follower --timeout--> pre-candidate --majority would vote--> candidate --majority voted--> leader
        ^                      |                                     |                          |
        +----------------------+-------- higher term, a leader, or no quorum -------------------+

Invariants, and the modules that maintain them:

- At most one leader per term: a replica casts one durable vote per term (`election`), and a candidate counts its own
  vote only once it is durable (`rawnode`).
- A leader never overwrites its log, and commits only entries of its own term by counting replicas (`leader_role`).
- Only the newest configuration change may be unapplied: a leader logs another one only after it applied the last one
  and an entry of its own term (`raft`). So a log that holds two proves that the first is committed.
- No replica campaigns while it knows of a committed configuration that it has not applied (`election`).

Messages that promise durability wait in `responses` for the log writer; all others are in `messages`.
"""

from __future__ import annotations

from typing import Final

from evenkeel_raft.core.conf_history import ConfHistory
from evenkeel_raft.core.errors import InvariantError, Refusal, RefusedError
from evenkeel_raft.core.raft_log import Log
from evenkeel_raft.core.raft_messages import Message
from evenkeel_raft.core.raft_types import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    NOOP,
    PRE_CANDIDATE,
    Entry,
    Random,
    ReadState,
    Settings,
)
from evenkeel_raft.core.readonly import ForwardedReads, LeaderReads
from evenkeel_raft.core.tracker import NEVER, REPLICATE, Tracker

__all__ = ["NEVER_DUE", "Raft", "Ticks"]

NEVER_DUE: Final = 1 << 62


class Ticks:
    """A tick counter. Nodes can share one, so that time passes for idle nodes at no cost."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0


class Raft:
    """The state of a replica. The other modules of the package are its behaviour."""

    __slots__ = (
        "accepting",
        "confs",
        "due",
        "durable_commit",
        "election_since",
        "forwarded",
        "generation",
        "group",
        "heartbeat_since",
        "leader",
        "leader_commit",
        "leader_contact",
        "leader_snapshot_index",
        "leadership_inhibited",
        "log",
        "messages",
        "pending_conf_index",
        "quiesced",
        "quiesced_at",
        "read_states",
        "reads",
        "receiving",
        "replica",
        "replicate_due",
        "reported_stateless",
        "responses",
        "rng",
        "role",
        "settings",
        "snapshots_wanted",
        "soft_state_changed",
        "state_requests",
        "state_source",
        "term",
        "term_start",
        "ticks",
        "timeout",
        "tracker",
        "transfer_deadline",
        "transfer_to",
        "vote",
        "votes",
        "write_due",
    )

    def __init__(
        self,
        *,
        group: int,
        generation: int,
        replica: int,
        settings: Settings,
        rng: Random,
        ticks: Ticks,
        log: Log,
        confs: ConfHistory,
        term: int,
        vote: int,
    ) -> None:
        self.group, self.generation, self.replica = group, generation, replica
        self.settings, self.rng, self.ticks = settings, rng, ticks
        self.log, self.confs = log, confs
        self.term, self.vote = term, vote
        self.role, self.leader, self.leader_contact = FOLLOWER, 0, NEVER
        self.tracker = Tracker()
        self.reads = LeaderReads()
        self.forwarded = ForwardedReads(rng)
        self.votes: dict[int, bool] = {}
        self.election_since = self.heartbeat_since = ticks.now
        self.due = ticks.now + 1
        self.transfer_to = self.transfer_deadline = 0
        # The lowest index of a snapshot that the leader, which lost its state, requested from this replica.
        self.leader_snapshot_index = 0
        # On a leader that lost its state: the member it requests a snapshot from, and its requests so far.
        self.state_source = self.state_requests = 0
        self.receiving = False  # a snapshot of this term is arriving
        self.term_start = self.pending_conf_index = 0
        self.durable_commit = self.leader_commit = 0
        self.accepting = self.quiesced = self.leadership_inhibited = False
        self.quiesced_at = 0
        self.reported_stateless = log.stateless  # last value sent to a leader
        self.replicate_due = self.soft_state_changed = self.write_due = False
        self.messages: list[Message] = []
        self.responses: list[Message] = []
        self.read_states: list[ReadState] = []
        self.snapshots_wanted: list[int] = []
        self.timeout = 0
        self.reset_election_timeout()

    def reset_election_timeout(self) -> None:
        """Draw a random election timeout; a replica that should not or cannot lead lets the others campaign first."""
        ticks = self.settings.election_ticks
        delay = 2 * ticks if self.leadership_inhibited or self.log.stateless else 0
        self.timeout = ticks + self.rng.randrange(ticks) + delay
        self.schedule_tick(self.election_since + self.timeout)

    def schedule_tick(self, tick: int) -> None:
        """Run timers at this tick at the latest."""
        self.due = min(self.due, tick)

    # Roles

    def _leave_role(self, term: int) -> None:
        if term != self.term:
            self.term, self.vote = term, 0
            self.responses = []  # they refer to entries that the new term may replace before they are written
        self.leader, self.soft_state_changed = 0, True
        self.votes = {}
        self.election_since = self.heartbeat_since = self.ticks.now
        self.reset_election_timeout()
        self.transfer_to = self.leader_snapshot_index = self.state_source = self.state_requests = 0
        self.accepting = self.replicate_due = self.quiesced = self.receiving = False
        self.tracker.clear()
        self.snapshots_wanted = []
        self._drop_reads()

    def _drop_reads(self) -> None:
        failed = [read.context for read in self.reads.drop() if read.origin == self.replica]
        failed += self.forwarded.drop()
        self.read_states += [ReadState(context, 0) for context in failed]

    def become_follower(self, term: int, leader: int) -> None:
        """Follow a leader, or wait for one if it is 0."""
        self._leave_role(term)
        self.role, self.leader = FOLLOWER, leader

    def become_pre_candidate(self) -> None:
        """Start a pre-vote; term and vote do not change."""
        self._leave_role(self.term)
        self.role = PRE_CANDIDATE
        self.votes[self.replica] = True

    def become_candidate(self) -> None:
        """Start an election in a new term; the replica's own vote counts once it is durable."""
        self._leave_role(self.term + 1)
        self.role, self.vote = CANDIDATE, self.replica
        self.write_due = True

    def become_leader(self) -> None:
        """Lead, and append an entry of the new term: only such entries are committed by counting replicas."""
        if self.role != CANDIDATE:
            raise InvariantError(f"replica {self.replica} would lead term {self.term} without an election")
        self._leave_role(self.term)
        self.role, self.leader = LEADER, self.replica
        log = self.log
        self.tracker.configure(self.confs.current, self.replica, next_index=log.last_index + 1, now=self.ticks.now)
        me = self.tracker.progress[self.replica]
        log.measure()
        me.match, me.next, me.state, me.commit = log.durable, log.last_index + 1, REPLICATE, self.durable_commit
        self.term_start = self.pending_conf_index = log.last_index + 1
        log.append(Entry(self.term_start, self.term, NOOP, b""))
        self.update_accepting()
        self.replicate_due = True
        self.schedule_tick(self.heartbeat_since + self.settings.heartbeat_ticks)

    def update_accepting(self) -> None:
        """Accept proposals only while leading, not handing over, and a voter of the incoming configuration."""
        conf = self.confs.current
        self.accepting = self.role == LEADER and not self.transfer_to and self.replica in conf.voters

    def check_leading(self) -> None:
        """Raise `RefusedError` unless this replica leads."""
        if self.role != LEADER:
            raise RefusedError(Refusal.NOT_LEADER, leader=self.leader)

    def check_accepting(self) -> None:
        """Raise `RefusedError` with the reason if proposals are not accepted."""
        self.check_leading()
        if self.transfer_to:
            raise RefusedError(Refusal.TRANSFERRING, leader=self.transfer_to)
        if not self.accepting:
            raise RefusedError(Refusal.LEAVING)

    # Positions and quiescence

    def commit_to(self, index: int) -> None:
        """Advance the commit index.

        The commit of a configuration entry is made durable and reported at once: removed members may be deleted only
        when a quorum durably knows that the configuration without them is committed.
        """
        log = self.log
        if index <= log.committed:
            return
        if index > log.last_index:
            raise InvariantError(f"the log lost entries: it ends at {log.last_index}, but {index} is committed")
        if log.conf_indexes and log.conf_in(log.committed, index):
            self.write_due = True
        log.committed = index

    @property
    def now(self) -> int:
        """The replica's time, which stops while it is quiesced so that members do not appear silent."""
        return self.quiesced_at if self.quiesced else self.ticks.now

    def quiesce(self) -> None:
        """Stop the timers until `wake`."""
        self.quiesced, self.quiesced_at = True, self.ticks.now

    def wake(self) -> None:
        """Restart the timers with a new random timeout, because many groups may wake at once."""
        if not self.quiesced:
            return
        self.quiesced = False
        self.election_since = self.heartbeat_since = self.ticks.now
        self.reset_election_timeout()
        self.schedule_tick(self.ticks.now + 1)
        if self.leader_contact != NEVER:
            self.leader_contact = self.ticks.now  # a quiesced leader is silent by design
        for pr in self.tracker.peers:
            pr.since, pr.last_contact = self.ticks.now, NEVER  # contacts from before are outdated

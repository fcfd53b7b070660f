"""The state of one replica of one group, and the transitions between its roles.

    follower --timeout--> pre-candidate --majority would vote--> candidate --majority voted--> leader
        ^                      |                                     |                          |
        +----------------------+-------- higher term, a leader, or no quorum -------------------+

What must hold, and where it is kept:

- At most one leader per term: one durable vote per term (`election`), and a candidate's own vote counts only once it
  is durable too (`rawnode`).
- A leader never overwrites its log, and only entries of its own term are committed by counting (`leader`).
- Only the newest configuration change may be unapplied: a leader logs another one only after it applied the last one
  and an entry of its own term (`raft`). Hence a log that holds two proves that the first is committed.
- Nobody campaigns while it knows of a committed configuration that it has not applied (`election`).

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
    """Counts ticks. Many nodes can share one: then it costs nothing to let time pass for those with nothing due."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0


class Raft:
    """Everything a replica knows. The modules beside this one are its behaviour."""

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
        self.leader_snapshot_index = (
            0  # the leader lost its state: it waits for a snapshot from here, at this index or later
        )
        self.state_source = self.state_requests = (
            0  # a leader that lost its state: whom it asks for one, and how often it has in a row
        )
        self.receiving = False  # a snapshot of this term is coming in
        self.term_start = self.pending_conf_index = 0
        self.durable_commit = self.leader_commit = 0
        self.accepting = self.quiesced = self.leadership_inhibited = False
        self.quiesced_at = 0
        self.reported_stateless = log.stateless  # what leaders were told last
        self.replicate_due = self.soft_state_changed = self.write_due = False
        self.messages: list[Message] = []
        self.responses: list[Message] = []
        self.read_states: list[ReadState] = []
        self.snapshots_wanted: list[int] = []
        self.timeout = 0
        self.reset_election_timeout()

    def reset_election_timeout(self) -> None:
        """Choose when to campaign; one that could not serve as leader waits until the others have had their turn."""
        ticks = self.settings.election_ticks
        late = 2 * ticks if self.leadership_inhibited or self.log.stateless else 0
        self.timeout = ticks + self.rng.randrange(ticks) + late
        self.schedule_tick(self.election_since + self.timeout)

    def schedule_tick(self, tick: int) -> None:
        """Be looked at then, or earlier."""
        self.due = min(self.due, tick)

    # Roles

    def _leave_role(self, term: int) -> None:
        if term != self.term:
            self.term, self.vote = term, 0
            self.responses = []  # no promise outlives its term: what it speaks of may be replaced before it is written
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
        """Follow a leader, or (0) wait for one."""
        self._leave_role(term)
        self.role, self.leader = FOLLOWER, leader

    def become_pre_candidate(self) -> None:
        """Ask whether an election could be won. Term and vote stay."""
        self._leave_role(self.term)
        self.role = PRE_CANDIDATE
        self.votes[self.replica] = True

    def become_candidate(self) -> None:
        """Stand for election; the own vote counts once it is durable."""
        self._leave_role(self.term + 1)
        self.role, self.vote = CANDIDATE, self.replica
        self.write_due = True

    def become_leader(self) -> None:
        """Lead, beginning with an entry of the new term: only such entries are committed by counting."""
        if self.role != CANDIDATE:
            raise InvariantError(f"replica {self.replica} became leader of term {self.term} without an election")
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
        """Decide whether proposals are taken: not while handing over, nor by a leader on its way out."""
        conf = self.confs.current
        self.accepting = self.role == LEADER and not self.transfer_to and self.replica in conf.voters

    def check_leading(self) -> None:
        """Refuse what only a leader can do."""
        if self.role != LEADER:
            raise RefusedError(Refusal.NOT_LEADER, leader=self.leader)

    def check_accepting(self) -> None:
        """Refuse proposals, saying why."""
        self.check_leading()
        if self.transfer_to:
            raise RefusedError(Refusal.TRANSFERRING, leader=self.transfer_to)
        if not self.accepting:
            raise RefusedError(Refusal.LEAVING)

    # Positions and quiescence

    def commit_to(self, index: int) -> None:
        """Move the commit index forward.

        That of a configuration entry is made durable and reported at once: members are let go only when a quorum
        durably knows that the configuration without them is committed.
        """
        log = self.log
        if index <= log.committed:
            return
        if index > log.last_index:
            raise InvariantError(f"committed up to {index}, but the log ends at {log.last_index}: entries were lost")
        if log.conf_indexes and log.conf_in(log.committed, index):
            self.write_due = True
        log.committed = index

    @property
    def now(self) -> int:
        """The time as this replica knows it: none passes while it sleeps, or its members would all seem to be gone."""
        return self.quiesced_at if self.quiesced else self.ticks.now

    def quiesce(self) -> None:
        """Stop ticking until something wakes it."""
        self.quiesced, self.quiesced_at = True, self.ticks.now

    def wake(self) -> None:
        """Begin ticking again, with a fresh and random timeout: many groups may wake at once."""
        if not self.quiesced:
            return
        self.quiesced = False
        self.election_since = self.heartbeat_since = self.ticks.now
        self.reset_election_timeout()
        self.schedule_tick(self.ticks.now + 1)
        if self.leader_contact != NEVER:
            self.leader_contact = self.ticks.now  # silence in its sleep is no sign
        for pr in self.tracker.peers:
            pr.since, pr.last_contact = self.ticks.now, NEVER  # nobody was listened to meanwhile

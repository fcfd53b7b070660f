"""Invariants that hold after every event of a simulation, whatever fails.

The checker records everything that any replica committed, applied, voted for and configured, and compares. After an
event it checks only the affected replica, so a check is as cheap as the event.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from evenkeel_raft.core.quorum import has_quorum
from evenkeel_raft.core.raft_messages import Message, VoteRequest, VoteResponse
from evenkeel_raft.core.raft_state import Raft
from evenkeel_raft.core.raft_types import LEADER, Conf, Entry, SnapshotMeta
from evenkeel_raft.core.rawnode import AppendBatch, RawNode

Holds = Callable[[int, int, int], bool]  # replica, index, term: whether its disk has, or rightfully had, the entry


class ViolationError(AssertionError):
    """An invariant is broken."""


class _Seen:
    """The last observed state of a running replica."""

    def __init__(self) -> None:
        self.term = self.committed = self.applied = self.led_term = self.conf_index = 0
        self.led_last = 0
        self.conf: Conf | None = None


class Invariants:
    """The recorded history and the checks."""

    def __init__(self, genesis: SnapshotMeta, holds: Holds) -> None:
        self._holds = holds
        self._seen: dict[int, _Seen] = {}
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._entries: dict[tuple[int, int], tuple[int, Entry]] = {}
        self._applied: dict[int, Entry] = {}
        self._states: dict[int, int] = {}
        self.committed: dict[int, int] = {genesis.index: genesis.term}
        self.last_committed = genesis.index
        self._committed_in: dict[int, int] = {}
        self.confs: dict[int, Conf] = {genesis.index: genesis.conf}

    # Called by the host

    def started(self, replica: int, node: RawNode) -> None:
        """Record that a replica started or restarted from its disk."""
        self._seen[replica] = seen = _Seen()
        raft = node._raft
        seen.conf_index = raft.confs.index
        self._check_known_committed(replica, raft, after=raft.log.offset)
        seen.committed = raft.log.committed

    def attached(self, replica: int, node: RawNode) -> None:
        """Record that a state machine reattached with its durable state."""
        self._seen[replica].applied = node._raft.log.applied

    def sent(self, message: Message) -> None:
        """Record a sent message; a vote must not change, even across crashes."""
        if isinstance(message, VoteResponse) and message.granted and not message.pre:
            self._vote(message.sender, message.term, message.receiver)
        elif isinstance(message, VoteRequest) and not message.pre:
            self._vote(message.sender, message.term, message.sender)

    def _vote(self, voter: int, term: int, candidate: int) -> None:
        first = self._votes.setdefault((voter, term), candidate)
        if first != candidate:
            raise ViolationError(f"replica {voter} voted for {first} and {candidate} in term {term}")

    def writing(self, replica: int, node: RawNode, batch: AppendBatch) -> None:
        """Check log matching: the same index and term imply the same entry and the same predecessor."""
        log = node._raft.log
        for entry in batch.entries:
            before = log.term(entry.index - 1)
            known = self._entries.setdefault((entry.index, entry.term), (before, entry))
            if known[1] != entry or (before >= 0 and known[0] >= 0 and known[0] != before):
                raise ViolationError(f"log matching: replica {replica} has {entry} after term {before}, others {known}")

    def applying(self, replica: int, entries: list[Entry]) -> None:
        """Check state machine safety: all replicas apply the same entry at an index."""
        for entry in entries:
            known = self._applied.setdefault(entry.index, entry)
            if known != entry:
                raise ViolationError(f"replica {replica} applies {entry}, others applied {known}")

    def state(self, replica: int, index: int, digest: int) -> None:
        """Check that states at an index are equal on all replicas."""
        known = self._states.setdefault(index, digest)
        if known != digest:
            raise ViolationError(f"replica {replica} is in another state than others at {index}")

    # After every event

    def check(self, replica: int, node: RawNode) -> None:
        """Check the replica that an event affected."""
        raft, seen = node._raft, self._seen[replica]
        log = raft.log
        if raft.term < seen.term or log.committed < seen.committed or log.applied < seen.applied:
            raise ViolationError(f"replica {replica} went back: term, commit or applied index")
        if raft.role == LEADER:
            self._check_leader(replica, raft, seen)
        if log.committed > seen.committed:
            self._check_commit(replica, raft, seen)
        if raft.confs.index > seen.conf_index:
            self._check_conf(replica, raft, seen)
        seen.term, seen.committed, seen.applied = raft.term, log.committed, log.applied
        seen.conf = raft.confs.current

    def _check_leader(self, replica: int, raft: Raft, seen: _Seen) -> None:
        log = raft.log
        if self._leaders.setdefault(raft.term, replica) != replica:
            raise ViolationError(f"replicas {self._leaders[raft.term]} and {replica} lead term {raft.term}")
        if seen.led_term != raft.term:
            seen.led_term = raft.term
            self._check_complete(replica, raft)
        elif log.last_index < seen.led_last:
            raise ViolationError(f"leader {replica} cut its own log")
        seen.led_last = log.last_index
        conf = raft.confs.current
        if not conf.is_voter(replica):
            raise ViolationError(f"replica {replica} leads and is no voter of {conf}")
        unapplied = [index for index in log.conf_indexes if index > raft.confs.index]
        if len(unapplied) > 1:
            raise ViolationError(f"leader {replica} has unapplied configuration changes at {unapplied}")
        for pr in raft.tracker.progress.values():
            if pr.next <= pr.match:
                raise ViolationError(f"leader {replica}: next {pr.next} <= match {pr.match} of {pr.replica}")

    def _check_complete(self, replica: int, raft: Raft) -> None:
        """Check leader completeness: a new leader has all entries committed in earlier terms.

        (One who slept through its victory may win an old term after newer ones have committed more.)
        """
        log = raft.log
        need = max((index for term, index in self._committed_in.items() if term < raft.term), default=0)
        if log.last_index < need:
            raise ViolationError(f"leader {replica} of term {raft.term} lacks committed {need}")
        self._check_known_committed(replica, raft, after=log.offset, upto=need)

    def _check_known_committed(self, replica: int, raft: Raft, *, after: int, upto: int | None = None) -> None:
        log = raft.log
        for index in range(max(after, 1), (log.committed if upto is None else upto) + 1):
            term = log.term(index)
            if term >= 0 and self.committed.get(index) != term:
                raise ViolationError(f"replica {replica} has {index}/{term}, committed is {self.committed.get(index)}")

    def _check_commit(self, replica: int, raft: Raft, seen: _Seen) -> None:
        log = raft.log
        led = seen.led_term == raft.term  # including a leader that its own commit made step down
        if led and log.committed > self.last_committed:
            if log.term(log.committed) != raft.term:
                raise ViolationError(f"leader {replica} of term {raft.term} committed an entry of another by counting")
            self._check_durable(replica, raft, seen.conf)
            for index in range(self.last_committed + 1, log.committed + 1):
                self.committed[index] = log.term(index)
            self.last_committed = self._committed_in[raft.term] = log.committed
        self._check_known_committed(replica, raft, after=max(seen.committed + 1, log.offset))

    def _check_durable(self, replica: int, raft: Raft, before: Conf | None) -> None:
        """Check that a commit is on the disks of a quorum, not only acknowledged by one.

        One event may apply a configuration and a commit that it allows, or a commit and the configuration in it.
        """
        index = raft.log.committed
        confs = [raft.confs.current] if before is None else [before, raft.confs.current]
        members = {member for conf in confs for member in conf.members()}
        holding = {member for member in members if self._holds(member, index, raft.log.term(index))}
        if not any(has_quorum(conf.voters, conf.outgoing, holding) for conf in confs):
            raise ViolationError(f"leader {replica} committed {index}, durable only on {sorted(holding)} of {confs}")

    def _check_conf(self, replica: int, raft: Raft, seen: _Seen) -> None:
        for index, conf in raft.confs._history:
            if index <= seen.conf_index:
                continue
            earlier = [known for known in self.confs if known <= index]
            known = self.confs[max(earlier)]
            if max(earlier) != index and index in raft.log.conf_indexes:
                self.confs[index] = conf
                self._check_overlap(known, conf)
            elif known != conf:
                raise ViolationError(f"replica {replica} has configuration {conf} as of {index}, others {known}")
        seen.conf_index = raft.confs.index

    def _check_overlap(self, one: Conf, other: Conf) -> None:
        """Check that any two quorums of consecutive configurations overlap."""
        members = sorted({*one.members(), *other.members()})
        for size in range(len(members) + 1):
            for chosen in combinations(members, size):
                rest = set(members) - set(chosen)
                if has_quorum(one.voters, one.outgoing, set(chosen)) and has_quorum(other.voters, other.outgoing, rest):
                    raise ViolationError(f"quorums of {one} and {other} need not overlap")

"""A simplified model of a raft group, with what the rebalance protocol depends on.

The model has logs, terms, commit by own-term entries, joint configurations that take effect when committed, snapshots,
compaction, and followers that know less than their leader. It is simplified: an exchange with a follower is one atomic
step, an election succeeds or does nothing, and appended entries are durable. The order of steps covers lost, late and
reordered messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.records import ReplicaId


class Entry(NamedTuple):
    """One log entry: a configuration, a client's write, or (neither) the empty entry that starts a term."""

    term: int
    configuration: Configuration | None = None
    write: int = 0


class Replica:
    """One replica's durable state, and its volatile state while it leads."""

    __slots__ = ("base", "base_configuration", "base_term", "commit", "id", "known", "leading", "log", "match", "term")

    def __init__(self, id_: ReplicaId, genesis: Configuration | None) -> None:
        self.id = id_
        self.term = 0
        self.base = 0 if genesis is None else 1
        self.base_term = 0
        self.base_configuration = genesis
        self.log: tuple[Entry, ...] = ()
        self.commit = self.base
        self.leading = False
        self.match: dict[ReplicaId, int] = {}
        self.known: dict[ReplicaId, int] = {}

    def clone(self) -> Replica:
        twin = Replica.__new__(Replica)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.match, twin.known = dict(self.match), dict(self.known)
        return twin

    @property
    def last(self) -> int:
        return self.base + len(self.log)

    def term_at(self, index: int) -> int:
        return self.base_term if index == self.base else self.log[index - self.base - 1].term

    def position(self) -> tuple[int, int]:
        """Return what elections compare: the last entry's term, then its index."""
        return (self.term_at(self.last), self.last)

    def applied(self) -> Configuration | None:
        """Return the newest committed configuration."""
        return self._newest_until(self.commit)[1]

    def applied_index(self) -> int:
        return self._newest_until(self.commit)[0]

    def newest(self) -> Configuration | None:
        """Return the newest configuration in the log or snapshot, committed or not."""
        return self._newest_until(self.last)[1]

    def _newest_until(self, index: int) -> tuple[int, Configuration | None]:
        for at in range(index - self.base - 1, -1, -1):
            configuration = self.log[at].configuration
            if configuration is not None:
                return self.base + at + 1, configuration
        return self.base, self.base_configuration

    def restart(self) -> None:
        """Drop the volatile state."""
        self.leading = False
        self.match, self.known = {}, {}

    def compact(self) -> None:
        """Replace the committed part of the log by a snapshot."""
        term, configuration, commit = self.term_at(self.commit), self.applied(), self.commit
        self.log = self.log[commit - self.base :]
        self.base, self.base_term, self.base_configuration = commit, term, configuration


def granted(candidate: Replica, voters: Iterable[Replica]) -> set[ReplicaId]:
    """Return the replicas that would vote for the candidate: those whose log is not ahead of its own."""
    return {voter.id for voter in voters if voter.position() <= candidate.position()} | {candidate.id}


def crown(candidate: Replica, electors: Iterable[Replica]) -> None:
    """Make the candidate leader of a new term; its voters follow no leader of an older term."""
    electors = [elector for elector in electors if elector.id != candidate.id]
    term = 1 + max([candidate.term, *(elector.term for elector in electors)])
    for elector in electors:
        elector.term = term
        elector.restart()
    candidate.restart()
    candidate.term = term
    candidate.leading = True
    append(candidate, Entry(term))


def append(leader: Replica, entry: Entry) -> None:
    leader.log = (*leader.log, entry)
    advance(leader)


def replicate(leader: Replica, follower: Replica) -> None:
    """Bring the follower up to the leader's log, and update the leader's knowledge of the follower."""
    if follower.term > leader.term:
        leader.term = follower.term
        leader.restart()
        return
    if follower.term < leader.term or follower.leading:
        follower.restart()
    follower.term = leader.term
    if follower.base_configuration is None or not _reaches(follower, leader):
        _install(leader, follower)
    else:
        _append_missing(leader, follower)
    follower.commit = max(follower.commit, min(leader.commit, follower.last))
    leader.match[follower.id] = follower.last
    leader.known[follower.id] = follower.commit
    advance(leader)


def _reaches(follower: Replica, leader: Replica) -> bool:
    """Whether the follower can continue from the start of the leader's log without a snapshot."""
    if follower.commit >= leader.base:
        return True
    return follower.last >= leader.base and follower.term_at(leader.base) == leader.base_term


def _install(leader: Replica, follower: Replica) -> None:
    follower.base = follower.commit = leader.commit
    follower.base_term = leader.term_at(leader.commit)
    follower.base_configuration = leader.applied()
    follower.log = ()


def _append_missing(leader: Replica, follower: Replica) -> None:
    start = max(leader.base, follower.base)
    theirs = leader.log[start - leader.base :]
    ours = follower.log[start - follower.base :]
    same = 0
    while same < min(len(theirs), len(ours)) and theirs[same].term == ours[same].term:
        same += 1
    if same < len(theirs):
        assert start + same >= follower.commit, "a committed entry would be overwritten"
        follower.log = (*follower.log[: start - follower.base + same], *theirs[same:])


def advance(leader: Replica) -> None:
    """Commit what a quorum has, only entries of the own term; a committed configuration applies to what follows."""
    while True:
        configuration = leader.applied()
        assert configuration is not None
        for index in range(leader.last, leader.commit, -1):
            if leader.term_at(index) != leader.term:
                return
            present = {id_ for id_, match in leader.match.items() if match >= index} | {leader.id}
            if configuration.is_quorum(present):
                leader.commit = index
                break
        else:
            return
        if leader.id not in leader.applied().voter_ids():  # type: ignore[union-attr]
            leader.restart()
            return

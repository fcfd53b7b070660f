"""The read-only half of a node."""

from __future__ import annotations

from collections.abc import Collection

from evenkeel_raft.core import leader_role
from evenkeel_raft.core.confchange import apply_change
from evenkeel_raft.core.raft_state import Raft
from evenkeel_raft.core.raft_status import Status, leader_silent_ticks, status_of
from evenkeel_raft.core.raft_types import LEADER, ROLE_NAMES, Conf, decode_conf_change

__all__ = ["NodeView"]


class NodeView:
    """State of one replica that callers may read at any time. Reading changes nothing."""

    __slots__ = ("_raft",)

    def __init__(self, raft: Raft) -> None:
        self._raft = raft

    def status(self) -> Status:
        """Return a consistent copy of everything below, and more."""
        return status_of(self._raft)

    # Role

    @property
    def replica(self) -> int:
        """The replica's id."""
        return self._raft.replica

    @property
    def term(self) -> int:
        """The current term."""
        return self._raft.term

    @property
    def role(self) -> str:
        """The current role, one of `ROLE_NAMES`."""
        return ROLE_NAMES[self._raft.role]

    @property
    def leading(self) -> bool:
        """Whether this replica is the leader."""
        return self._raft.role == LEADER

    @property
    def leader(self) -> int:
        """The replica id of the known leader, or 0."""
        return self._raft.leader

    @property
    def leader_silent_ticks(self) -> int | None:
        """Ticks since there certainly was a leader; see `Status`."""
        return leader_silent_ticks(self._raft)

    @property
    def committed_in_term(self) -> bool:
        """Whether this replica leads and committed an entry of its own term, so it knows everything committed."""
        return self.leading and self._raft.log.committed >= self._raft.term_start

    # Time

    @property
    def due(self) -> int:
        """The tick at which to call `run_due` if no input arrives earlier."""
        return self._raft.due

    @property
    def quiesced(self) -> bool:
        """Whether this node's timers are stopped."""
        return self._raft.quiesced

    # Configuration

    @property
    def conf(self) -> Conf:
        """The applied configuration."""
        return self._raft.confs.current

    @property
    def conf_index(self) -> int:
        """The index of the entry that made the applied configuration."""
        return self._raft.confs.index

    def newest_conf(self) -> Conf:
        """Return the newest configuration in the log or snapshot; exact if at most one is not applied."""
        r = self._raft
        indexes = r.log.conf_indexes
        if not indexes or indexes[-1] <= r.confs.index:
            return r.confs.current
        return apply_change(r.confs.current, decode_conf_change(r.log.entry(indexes[-1]).data))

    def quorum_without(self, lost: Collection[int]) -> bool:
        """Whether the applied configuration has a quorum without these members."""
        return leader_role.quorum_without(self._raft, lost)

    # Log

    @property
    def offset(self) -> int:
        """The index after which the log begins."""
        return self._raft.log.offset

    @property
    def committed(self) -> int:
        """The commit index."""
        return self._raft.log.committed

    @property
    def lagging(self) -> bool:
        """Whether this follower knows of a leader's commit index above its own."""
        return not self.leading and self._raft.log.committed < self._raft.leader_commit

    def term_at(self, index: int) -> int:
        """Return the term of an entry; negative outside the log."""
        return self._raft.log.term(index)

    def index_before(self, size: int) -> int:
        """Return the last applied index with at least `size` bytes of log after it; `offset` if there are fewer."""
        return self._raft.log.index_before(size)

    # State machine

    @property
    def applied(self) -> int:
        """The last index that the state machine applied."""
        return self._raft.log.applied

    def applied_bytes(self) -> int:
        """Return the bytes of log that the state machine applied."""
        log = self._raft.log
        return log.size(log.offset, max(log.applied, log.offset))

    def unapplied_bytes(self) -> int:
        """Return the bytes of log that the state machine has yet to apply."""
        log = self._raft.log
        return log.size(max(log.applied, log.offset), log.last_index)

    @property
    def needs_restore(self) -> bool:
        """Whether the state machine waits for a snapshot that has not arrived."""
        return self._raft.log.needs_restore

    @property
    def lacks_state(self) -> bool:
        """Whether the state machine waits for a snapshot, or has yet to restore one that arrived."""
        return self._raft.log.lacks_state

    @property
    def restoring(self) -> int:
        """The index of an arrived snapshot that the state machine has yet to restore, or 0."""
        log = self._raft.log
        due = log.restore_due or log.pending_snapshot
        return due.index if due is not None else 0

"""Snapshots that one replica sends to another.

A leader sends snapshots to members that its log no longer reaches. A follower sends one only to a leader that lost its
state and asked for it. The caller copies the files; the core decides who needs a snapshot and from which index.
"""

from __future__ import annotations

from evenkeel_raft.core.errors import Refusal, RefusedError
from evenkeel_raft.core.raft_messages import InstallSnapshot
from evenkeel_raft.core.raft_state import Raft
from evenkeel_raft.core.raft_types import LEADER, SnapshotMeta
from evenkeel_raft.core.tracker import SNAPSHOT

__all__ = ["Snapshots"]


class Snapshots:
    """Snapshots of one replica's state machine."""

    __slots__ = ("_raft",)

    def __init__(self, raft: Raft) -> None:
        self._raft = raft

    def meta(self, index: int) -> SnapshotMeta:
        """Return the term and configuration that a snapshot at this index carries."""
        log = self._raft.log
        if index > log.applied:
            raise RefusedError(Refusal.NOT_APPLIED, detail=f"index {index}, applied {log.applied}")
        if index < log.offset:
            raise RefusedError(Refusal.COMPACTED, detail=f"index {index}, the log begins at {log.offset}")
        return SnapshotMeta(index, log.term(index), self._raft.confs.as_of(index))

    def serves(self, to: int) -> bool:
        """Whether this replica sends snapshots to another: a leader to its members, a follower to its leader."""
        r = self._raft
        return to != r.replica and (to in r.tracker.progress if r.role == LEADER else to == r.leader)

    def floor(self, to: int) -> int:
        """Return the earliest index of a snapshot that is useful to a member: both logs must continue from it."""
        r = self._raft
        pr = r.tracker.progress.get(to)
        return max(r.log.offset, r.leader_snapshot_index if pr is None else pr.snapshot_from)

    def send(self, to: int, index: int) -> None:
        """Emit the `InstallSnapshot` message for a snapshot whose files are complete, if the member still wants one."""
        r = self._raft
        repair = r.role != LEADER
        if repair and to != r.leader:
            r.check_leading()
        meta = self.meta(index)
        pr = r.tracker.progress.get(to)
        if not (r.leader_snapshot_index if repair else pr is not None and pr.snapshot_wanted):
            return
        if index < self.floor(to):
            raise RefusedError(Refusal.NOT_APPLIED, detail=f"index {self.floor(to)}, the snapshot's is {index}")
        if pr is not None and pr.state == SNAPSHOT:
            pr.pending_snapshot = index
        r.messages.append(InstallSnapshot(r.group, r.generation, r.replica, to, r.term, meta, repair))

    def report(self, to: int) -> None:
        """Report that a member's snapshot was delivered or abandoned; the member is then probed."""
        r = self._raft
        pr = r.tracker.progress.get(to)
        if pr is None:
            if to == r.leader:
                r.leader_snapshot_index = 0
            return
        pr.snapshot_wanted = False
        if pr.state == SNAPSHOT:
            pr.probe(max(pr.pending_snapshot, pr.match) + 1)
            pr.paused = True

"""Compacts the log of one replica: drops entries that are applied and that no answering member needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenkeel_raft.host.caught_up import is_answering
from evenkeel_raft.host.host_context import HostContext
from evenkeel_raft.log.log_records import Compacted

if TYPE_CHECKING:
    from evenkeel_raft.host.raft_replica import Replica

__all__ = ["LogCompaction"]


class LogCompaction:
    """Measures and compacts the log of one replica."""

    def __init__(self, replica: Replica, context: HostContext) -> None:
        self.log_bytes = 0
        """Length of the log when it was last measured."""
        self.backlog_full = False
        """Whether too many entries wait for the state machine; then the replica accepts no more from its leader."""
        self._replica = replica
        self._node = replica.node
        self._context = context
        self._compact_at = 2 * context.retention.keep_bytes

    def measure(self) -> None:
        """Update `log_bytes` and `backlog_full`."""
        unapplied = self._node.unapplied_bytes()
        self.log_bytes = self._node.applied_bytes() + unapplied
        self.backlog_full = unapplied > self._context.retention.max_bytes

    def compact_if_long(self) -> None:
        """Compact without waiting for the host's next sweep: until then, steady writes could add 100 MB."""
        if self._node.applied_bytes() >= self._compact_at:
            self.compact()
            # If a member needs the remaining entries, do not retry at every entry.
            self._compact_at = self._node.applied_bytes() + self._context.retention.keep_bytes

    def compact(self) -> None:
        """Drop entries that are applied, beyond the retention, and needed by no answering member."""
        keep, node, replica = self._context.retention.keep_bytes, self._node, self._replica
        if replica.stopped or node.needs_restore or not replica.applier.attached:
            return
        if node.applied_bytes() < 2 * keep:
            return
        # Beyond `max_bytes` entries go even if a member needs them: it then gets a snapshot.
        surplus = node.index_before(self._context.retention.max_bytes)
        upto = min(node.index_before(keep), max(self._needed_after(), surplus))
        if upto > node.offset:
            meta = node.compact(upto)
            replica.last_report = None
            self._context.counters.compactions += 1
            self._context.writer.submit(Compacted(replica.group, replica.id[1], replica.generation, meta))

    def _needed_after(self) -> int:
        """Return the index after which members that are catching up need entries."""
        node, floor = self._node, self._replica.snapshot_sender.floor
        floors = [floor] if floor is not None else []
        ticks, offset = self._context.settings.raft.election_ticks, node.offset
        if node.leading:
            peers = [peer for peer in node.status().peers.values() if is_answering(peer, ticks)]
            # A member that has just received a snapshot has matched nothing yet and continues after the snapshot.
            starts = [peer.match if peer.match >= offset else peer.next - 1 for peer in peers]
            floors += [start for start in starts if start >= offset]
        return min(floors, default=1 << 62)

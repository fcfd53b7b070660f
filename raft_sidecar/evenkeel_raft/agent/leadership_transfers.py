"""Transfers of single leaderships: for a change that removes the leader, by order, or after a stalled snapshot."""

from __future__ import annotations

from evenkeel.protocol.leader_decision import GroupView
from evenkeel.protocol.records import Peer, voters
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.agent.partition_retries import PartitionRetries
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["LeadershipTransfers", "successors"]


def successors(group: GroupView) -> list[Peer]:
    """Return the voters that can take over now: they have caught up and respond."""
    able = group.caught_up & group.answering
    return [peer for peer in voters(group.applied.peers) if peer.id in able and peer.id != group.me]


class LeadershipTransfers:
    """Asks raft to transfer leaderships, with backoff."""

    def __init__(self, context: AgentContext, retries: PartitionRetries) -> None:
        self._context = context
        self._retries = retries

    def after_stall(self, partition: Partition) -> None:
        """Let the next voter lead after a snapshot transfer stalled, if the settings ask for it;

        repeated stalls try each voter.
        """
        group = self._context.groups.leading(partition)
        if group is None or not self._context.tuning.current.step_down_when_stalled:
            return
        able = sorted(successors(group), key=lambda peer: (peer.id <= group.me, peer.id))
        if able:
            self.begin(partition, able[0], why="stalled")

    def begin(self, partition: Partition, to: Peer, *, why: str) -> None:
        """Attempt a transfer once; it is not repeated before the backoff ends, because raft reports no outcome."""
        if self._context.groups.transfer(partition, to.id):
            self._context.counters.transfers[why] += 1
        else:
            self._context.counters.failures["transfer"] += 1
        self._retries.retry_later(partition, f"leadership transfer to {to.store} did not complete")

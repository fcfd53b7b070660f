"""Handing single leaderships over: for a change in which the leader leaves, because it was ordered, or because the
leader cannot fill a member, and another one perhaps can."""

from __future__ import annotations

from evenkeel.protocol.leader_decision import GroupView
from evenkeel.protocol.records import Peer, voters
from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.agent.partition_retries import Attempts
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["Transfers", "successors"]


def successors(group: GroupView) -> list[Peer]:
    """Voters to whom the leader could hand over now: they have everything and answer."""
    able = group.caught_up & group.answering
    return [peer for peer in voters(group.applied.peers) if peer.id in able and peer.id != group.me]


class Transfers:
    """Asks raft, and not too often."""

    def __init__(self, context: Context, attempts: Attempts) -> None:
        self._context = context
        self._attempts = attempts

    def after_stall(self, partition: Partition) -> None:
        """A member is filled no further: let another voter try, if that is wanted; all of them, one after the other."""
        group = self._context.groups.leading(partition)
        if group is None or not self._context.tuning.now.step_down_when_stalled:
            return
        able = sorted(successors(group), key=lambda peer: (peer.id <= group.me, peer.id))
        if able:
            self.begin(partition, able[0], why="stalled")

    def begin(self, partition: Partition, to: Peer, *, why: str) -> None:
        """Try it once. Whether it works shows by who leads then; until that is known it is not repeated."""
        if self._context.groups.transfer(partition, to.id):
            self._context.counters.transfers[why] += 1
        else:
            self._context.counters.failures["transfer"] += 1
        self._attempts.put_off(partition, f"leadership does not go over to {to.store}")

"""Handing single leaderships over: for a change in which the leader leaves, or because it was ordered."""

from __future__ import annotations

from evenkeel.protocol.leader import GroupView
from evenkeel.protocol.records import Peer, voters
from evenkeel_raft.agent.attempts import Attempts
from evenkeel_raft.agent.context import Context
from evenkeel_raft.agent.groups import Partition

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

    def begin(self, partition: Partition, to: Peer, *, why: str) -> None:
        """Try it once. Whether it works shows by who leads then; until that is known it is not repeated."""
        if self._context.groups.transfer(partition, to.id):
            self._context.counters.transfers[why] += 1
        else:
            self._context.counters.failures["transfer"] += 1
        self._attempts.put_off(partition, f"leadership does not go over to {to.store}")

"""A raft group's configuration in the terms of the rebalance protocol.

`peers` are the present or incoming members. `outgoing` are the voters that leave; it is empty unless the
configuration is joint. `staged` are learners that catch up for a change that can still be cancelled. `token` is the
change token of the last completed change. Entries that only change `staged` keep it, so catching up a learner is
never mistaken for completing the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import msgspec

from evenkeel.protocol.records import Peer, ReplicaId, voters

__all__ = ["Configuration", "is_majority"]


class Configuration(msgspec.Struct, frozen=True):
    """A raft group's members, by their part in the current change."""

    peers: tuple[Peer, ...]
    outgoing: tuple[Peer, ...] = ()
    staged: tuple[Peer, ...] = ()
    token: int = 0

    @property
    def joint(self) -> bool:
        """Whether decisions need a majority of the outgoing voters as well as of the incoming ones."""
        return bool(self.outgoing)

    def members(self) -> frozenset[ReplicaId]:
        """Return all replicas that the leader sends entries to."""
        return frozenset(peer.id for peer in (*self.peers, *self.outgoing, *self.staged))

    def voter_ids(self) -> frozenset[ReplicaId]:
        """Return all voters, incoming and outgoing."""
        return frozenset(peer.id for peer in (*voters(self.peers), *self.outgoing))

    def is_quorum(self, present: Set[ReplicaId]) -> bool:
        """Whether `present` has a majority of the voters and, while joint, of the outgoing voters."""
        return is_majority(present, voters(self.peers)) and (not self.outgoing or is_majority(present, self.outgoing))


def is_majority(present: Set[ReplicaId], of: Iterable[Peer]) -> bool:
    """Whether more than half of these peers are present."""
    ids = [peer.id for peer in of]
    return 2 * sum(replica in present for replica in ids) > len(ids)

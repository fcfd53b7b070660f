"""A raft group's configuration as the rebalance protocol sees it.

`peers` is what the group is or becomes; `outgoing` are the voters it leaves behind while it is joint; `staged`
are learners being filled for a change that may still be called off. A configuration carries the token of the
change it completes; entries that only touch `staged` keep the token that was there before, so that filling a
learner is never mistaken for having finished the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import msgspec

from evenkeel.protocol.records import Peer, ReplicaId, voters

__all__ = ["Configuration", "is_majority"]


class Configuration(msgspec.Struct, frozen=True):
    """One configuration; final unless it is joint."""

    peers: tuple[Peer, ...]
    outgoing: tuple[Peer, ...] = ()
    staged: tuple[Peer, ...] = ()
    token: int = 0

    @property
    def joint(self) -> bool:
        """Whether decisions need a majority of the outgoing voters as well as of the incoming ones."""
        return bool(self.outgoing)

    def members(self) -> frozenset[ReplicaId]:
        """Everyone the leader sends entries to."""
        return frozenset(peer.id for peer in (*self.peers, *self.outgoing, *self.staged))

    def voter_ids(self) -> frozenset[ReplicaId]:
        """Everyone whose vote counts, in either half."""
        return frozenset(peer.id for peer in (*voters(self.peers), *self.outgoing))

    def is_quorum(self, present: Set[ReplicaId]) -> bool:
        """Whether `present` can decide: a majority of the voters, of both halves while joint."""
        return is_majority(present, voters(self.peers)) and (not self.outgoing or is_majority(present, self.outgoing))


def is_majority(present: Set[ReplicaId], of: Iterable[Peer]) -> bool:
    """Whether more than half of these peers are present."""
    ids = [peer.id for peer in of]
    return 2 * sum(replica in present for replica in ids) > len(ids)

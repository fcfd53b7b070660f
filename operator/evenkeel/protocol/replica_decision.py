"""When a sidecar starts a replica, and when it may delete one.

Absence is never exclusion: an empty etcd, a table still being created, a key that was not read, none of these
is a reason to delete data. A replica goes only if `stable` is there and neither it nor pending nor planned
names the replica, all read linearizably at one revision, *and then* the group's leader, sure of its leadership,
says that the replica is not in its configuration; or if the table's tombstone exists.
"""

from __future__ import annotations

import msgspec

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import Peer, ReplicaId

__all__ = ["Start", "excluded", "leader_excludes", "start"]


class Start(msgspec.Struct, frozen=True):
    """Start a replica: with the genesis configuration, or (None) empty, to be filled by the group's leader."""

    peer: Peer
    configuration: Configuration | None = None


def start(view: PartitionView, *, store: str, volume: str, newest_held: int) -> Start | None:
    """The replica this volume should start, if any; `newest_held` is the highest replica id it ever held of the group.

    Only a peer that names this very volume is ours: a wiped store has another one. A volume that ever held a replica
    never starts it, or an older one, again: what was promised under that id is forgotten.
    """
    if view.stable is None:
        return None
    started = view.pending.peers() if view.pending is not None else ()
    named = (peer for peer in (*view.stable.peers, *started) if (peer.store, peer.volume) == (store, volume))
    ours = next(named, None)
    if ours is None or ours.replica <= newest_held:
        return None
    if view.stable.genesis and ours in view.stable.peers:
        return Start(ours, Configuration(view.stable.peers))
    return Start(ours)


def excluded(view: PartitionView, replica: ReplicaId) -> bool:
    """Whether the keys, read at one revision, leave this replica out; no reason yet to delete it."""
    return view.stable is not None and all(peer.id != replica for peer in view.peers())


def leader_excludes(
    replica: ReplicaId, *, applied: Configuration, newest: Configuration, committed_in_term: bool
) -> bool:
    """A leader's word on a replica, to be given only after a quorum has confirmed that it still leads."""
    return committed_in_term and replica not in applied.members() and replica not in newest.members()

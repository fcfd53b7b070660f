"""When a sidecar starts a replica, and when it may delete one.

Missing keys never justify deleting data: etcd may be empty, the table may still be in creation, a key may not have
been read. A sidecar deletes a replica only if the table's tombstone exists, or if both of these hold, in this order:

1. `stable` exists, and neither `stable` nor `pending` nor `planned` names the replica. All are read linearizably at
   one revision.
2. The group's leader, after a quorum confirmed its leadership, says that the replica is not in its configuration.
"""

from __future__ import annotations

import msgspec

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import Peer, ReplicaId

__all__ = ["Start", "excluded", "leader_excludes", "start"]


class Start(msgspec.Struct, frozen=True):
    """Start a replica with the genesis configuration, or (None) empty, to receive its state from the leader."""

    peer: Peer
    configuration: Configuration | None = None


def start(view: PartitionView, *, store: str, volume: str, newest_held: int) -> Start | None:
    """Return the replica that this volume should start, if any.

    `newest_held` is the highest replica id of the group that the volume ever held. The volume never starts that
    replica or an older one again, because its votes and acknowledged entries are lost. A peer must name this volume,
    not only the store: a wiped store has a new volume.
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
    """Whether the keys name no such replica; not sufficient to delete it (see the module's docstring)."""
    return view.stable is not None and all(peer.id != replica for peer in view.peers())


def leader_excludes(
    replica: ReplicaId, *, applied: Configuration, newest: Configuration, committed_in_term: bool
) -> bool:
    """Whether the replica is not in the leader's configurations; valid only after a quorum confirmed its leadership."""
    return committed_in_term and replica not in applied.members() and replica not in newest.members()

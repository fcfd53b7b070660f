"""Decides whether a replica has caught up with its group.

A move must not remove a replica before its successor has caught up, a leader hands over only to a voter that has, and
a rolling update waits until every local replica has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenkeel_raft.core.raft_status import PeerStatus

if TYPE_CHECKING:
    from evenkeel_raft.host.raft_replica import Replica

__all__ = ["has_caught_up", "is_answering", "is_behind"]


def is_answering(peer: PeerStatus, ticks: int) -> bool:
    """Whether the leader has received a message from a member within `ticks`."""
    return peer.silent_ticks is not None and peer.silent_ticks < ticks


def has_caught_up(peer: PeerStatus, margin: int) -> bool:
    """Whether a member lacks at most `margin` bytes of the log and has a state to apply them to.

    A snapshot is safe once it is stored, but the member cannot serve before it is restored, which may take minutes.
    The replicas that serve until then must not leave earlier.
    """
    return (
        peer.state == "replicate"
        and not peer.snapshot_wanted
        and not peer.stateless
        and peer.bytes_behind is not None
        and peer.bytes_behind <= margin
    )


def is_behind(replica: Replica) -> bool:
    """Whether a local replica is a voter that cannot serve yet what is committed."""
    if replica.stopped:
        return True
    node, applier = replica.node, replica.applier
    if not node.conf.is_voter(node.replica):
        return False
    serves = replica.fit_to_lead and (node.applied == node.committed or applier.stalled_for() < 1.0)
    return not (serves and node.leader) or node.lagging

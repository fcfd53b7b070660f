"""How one configuration becomes another, and which replica ids its peers carry.

One joint change does almost everything at once: raft promotes in place and demotes through learners-next. The
one thing it must not do at once is hand the group to strangers. Clients and sidecars find a group through
`stable`, which may be one switch behind raft; so a majority of the voters of every step must already be in the
configuration before it. Where a target has too many new voters for that (1 -> 3 replicas, or all stores
replaced), a first step takes enough of them in as learners and the second makes the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evenkeel.protocol.records import Peer, Pending, Role, TargetPeer, voters

__all__ = ["assign_ids", "pending_of", "steps"]

Configuration = tuple[Peer, ...]


def assign_ids(target: Sequence[TargetPeer | Peer], *, keep: Iterable[Peer], plan: int) -> Configuration:
    """Give the target's peers ids: those of `keep` where store and volume are there already, else the plan's number."""
    known: dict[tuple[str, str], int] = {}
    for peer in keep:
        known.setdefault((peer.store, peer.volume), peer.replica)
    return tuple(sorted([Peer(p.store, p.volume, known.get((p.store, p.volume), plan), p.role) for p in target]))


def steps(current: Sequence[Peer], target: Sequence[Peer]) -> tuple[Configuration, ...]:
    """The configurations to apply one after the other; empty if there is nothing to do. Keeps `current`'s ids."""
    ids = {(peer.store, peer.volume): peer.replica for peer in current}
    members: list[Peer] = []
    newcomers: list[Peer] = []
    for peer in target:
        replica = ids.get((peer.store, peer.volume))
        if replica is None:
            newcomers.append(peer)
        else:
            members.append(Peer(peer.store, peer.volume, replica, peer.role))
    if not newcomers and sorted(members) == sorted(current):
        return ()
    final = tuple(sorted(members + newcomers))
    deciding = voters(newcomers)
    strangers = len(deciding) - _minority(len(voters(final)))
    if strangers <= 0:
        return (final,)
    learners = [Peer(peer.store, peer.volume, peer.replica, Role.LEARNER) for peer in sorted(deciding)[:strangers]]
    return (tuple(sorted([*current, *learners])), final)


def pending_of(current: Sequence[Peer], target: Sequence[Peer]) -> Pending | None:
    """`steps` as a queue to store, or None where there is nothing to store."""
    queue = steps(current, target)
    return Pending(queue) if queue else None


def _minority(count: int) -> int:
    """The largest number of voters that is less than half."""
    return (count - 1) // 2

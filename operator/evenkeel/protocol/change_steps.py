"""Split a change of peers into configurations that raft can apply safely, and assign replica ids.

One joint change is usually enough: raft promotes in place and demotes through learners-next. But clients and
sidecars find a group through `stable`, which may be one switch behind raft. So a majority of the voters of every
step must already be members of the step before it. If a target has too many new voters for that (1 -> 3 replicas,
or all stores replaced), a first step adds enough of them as learners and a second step makes the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evenkeel.protocol.records import Peer, Pending, Role, TargetPeer, voters

__all__ = ["assign_ids", "pending_of", "steps"]

Configuration = tuple[Peer, ...]


def assign_ids(target: Sequence[TargetPeer | Peer], *, keep: Iterable[Peer], plan: int) -> Configuration:
    """Assign replica ids: the id in `keep` for a store and volume that has one, the plan's number for others."""
    known: dict[tuple[str, str], int] = {}
    for peer in keep:
        known.setdefault((peer.store, peer.volume), peer.replica)
    return tuple(sorted([Peer(p.store, p.volume, known.get((p.store, p.volume), plan), p.role) for p in target]))


def steps(current: Sequence[Peer], target: Sequence[Peer]) -> tuple[Configuration, ...]:
    """Return the configurations to apply in order, with the ids of `current`; empty if nothing changes."""
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
    new_voters = voters(newcomers)
    excess = len(new_voters) - _minority(len(voters(final)))
    if excess <= 0:
        return (final,)
    learners = [Peer(peer.store, peer.volume, peer.replica, Role.LEARNER) for peer in sorted(new_voters)[:excess]]
    return (tuple(sorted([*current, *learners])), final)


def pending_of(current: Sequence[Peer], target: Sequence[Peer]) -> Pending | None:
    """Return `steps` as the pending record to store, or None if nothing changes."""
    queue = steps(current, target)
    return Pending(queue) if queue else None


def _minority(count: int) -> int:
    """Return the largest number of voters that is less than half."""
    return (count - 1) // 2

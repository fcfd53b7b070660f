"""Determines why a partition is unavailable, from its replicas' stores and volumes.

DataLost         no replica is left: the stores of all replicas run on other volumes
ReplicaDamaged   every replica on an available store is damaged
NoQuorum         the stores of half of the voters or more are unavailable or run on other volumes
NoLeader         a quorum is available, but no replica leads: an election, or a store that does not serve

While `pending` is locked the group may be in a joint configuration, which needs a majority of the voters of `stable`
and a majority of the voters of the head of `pending`. The leader locks only when the head's replicas have caught up, so
they count then. Without the lock they may be empty and do not count: otherwise a plan that replaces lost replicas would
hide the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from evenkeel.model.conditions import Reason
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import Leader, Peer, StoreLoad, StoreRecord, voters
from evenkeel.reconcile.table_snapshot import TableSnapshot

__all__ = ["OUTAGES", "Outage", "answering_leaders", "outages_of"]

OUTAGES: Final = (Reason.DATA_LOST, Reason.REPLICA_DAMAGED, Reason.NO_QUORUM, Reason.NO_LEADER)
"""Why a partition can be unavailable, the worst first."""
_REMEDIES: Final = {
    Reason.DATA_LOST: "restore the volumes that held them, or delete the table and load its rows again",
    Reason.REPLICA_DAMAGED: "start a store with an undamaged replica, or delete the table and load its rows again",
    Reason.NO_QUORUM: "start these stores with their previous volumes; reads and writes then resume",
    Reason.NO_LEADER: "an election takes a few seconds; if this persists, check the logs of these stores",
}


class Outage(msgspec.Struct, frozen=True):
    """Why a partition is unavailable, and which stores to check."""

    reason: Reason
    stores: tuple[str, ...]

    @property
    def cause(self) -> str:
        """What is wrong."""
        named = ", ".join(self.stores)
        match self.reason:
            case Reason.DATA_LOST:
                return f"no replica is left, because these stores run on other volumes than before: {named}"
            case Reason.REPLICA_DAMAGED:
                return f"no replica can serve, because the replicas on these stores are damaged: {named}"
            case Reason.NO_QUORUM:
                return f"no quorum, because these stores are unavailable or run on other volumes than before: {named}"
            case _:
                return f"no leader, although a quorum of voters is available: {named}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return _REMEDIES[self.reason]


def answering_leaders(snapshot: TableSnapshot) -> dict[int, Leader]:
    """Return the leaders whose store is registered and runs on the volume that holds the replica.

    The key of a store that failed stays until another store leads, and that store may come back empty.
    """
    registered = snapshot.registered
    return {
        partition: leader
        for partition, leader in snapshot.leaders.items()
        if _can_answer(snapshot.partition(partition), leader, registered)
    }


def _can_answer(view: PartitionView, leader: Leader, registered: Mapping[str, StoreRecord]) -> bool:
    """Whether the leader's replica is available; a pending one counts only if the store has no stable one."""
    stable = view.stable.peers if view.stable is not None else ()
    own = [peer for peer in stable if peer.store == leader.store]
    own = own or [peer for peer in view.peers() if peer.store == leader.store]
    return any(_available(peer, registered) for peer in own)


def outages_of(snapshot: TableSnapshot, leaderless: Iterable[int], loads: Mapping[str, StoreLoad]) -> dict[int, Outage]:
    """Return why each of these partitions without a leader is unavailable."""
    damaged = {store: frozenset(load.damaged) for store, load in loads.items() if load.damaged}
    return {
        partition: _outage(snapshot.partition(partition), f"{snapshot.table}/{partition}", snapshot.registered, damaged)
        for partition in leaderless
    }


def _outage(
    view: PartitionView, name: str, registered: Mapping[str, StoreRecord], damaged: Mapping[str, frozenset[str]]
) -> Outage:
    sides = _sides(view)
    peers = {peer for side in sides for peer in side}
    available = {peer for peer in peers if _available(peer, registered)}
    if peers and not available and all(peer.store in registered for peer in peers):
        return Outage(Reason.DATA_LOST, _stores(peers))
    unfit = {peer for peer in available if name in damaged.get(peer.store, ())}
    if available and unfit == available:
        return Outage(Reason.REPLICA_DAMAGED, _stores(unfit))
    missing = [peer for side in sides for peer in _missing(side, available)]
    if missing:
        return Outage(Reason.NO_QUORUM, _stores(missing))
    return Outage(Reason.NO_LEADER, _stores(available))


def _sides(view: PartitionView) -> tuple[tuple[Peer, ...], ...]:
    """Return the configurations that each need a majority: two while a change is locked."""
    stable = view.stable.peers if view.stable is not None else ()
    if view.lock is None or view.pending is None:
        return (stable,)
    return stable, view.pending.head


def _missing(side: tuple[Peer, ...], available: Collection[Peer]) -> list[Peer]:
    """Return a configuration's unavailable voters if it has no majority, else nothing."""
    missing = [peer for peer in voters(side) if peer not in available]
    return missing if 2 * len(missing) >= len(voters(side)) else []


def _available(peer: Peer, registered: Mapping[str, StoreRecord]) -> bool:
    """Whether the replica's store is registered with the volume that the replica is on."""
    record = registered.get(peer.store)
    return record is not None and record.volume == peer.volume


def _stores(peers: Iterable[Peer]) -> tuple[str, ...]:
    return tuple(sorted({peer.store for peer in peers}))

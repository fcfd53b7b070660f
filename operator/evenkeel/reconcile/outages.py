"""Why nobody can read or write a partition: what its stores and their volumes say about its replicas.

DataLost         no replica is left: the stores of all of them run on other volumes
ReplicaDamaged   every replica whose store is there is damaged, so none can serve
NoQuorum         the stores of half of the voters or more are away, or run on other volumes
NoLeader         a majority is there and no replica leads: an election, or a store that does not serve

While `pending` is locked the group may be in a joint configuration, which needs a majority of the voters of `stable`
and one of the voters of the head of `pending`. The leader locks only when the replicas of the head have caught up, so
they count as replicas then. Without the lock they may be empty and do not count: after the loss of all replicas, a plan
that replaces them would otherwise hide the loss.
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
"""The reasons for which a partition cannot be read or written, the worst first."""
_REMEDIES: Final = {
    Reason.DATA_LOST: "bring back the volumes that held them, or delete the table and load its rows again",
    Reason.REPLICA_DAMAGED: "bring back a store that has an undamaged replica, or delete the table and load its rows "
    "again",
    Reason.NO_QUORUM: "start these stores again with the volumes they had; reads and writes then resume by themselves",
    Reason.NO_LEADER: "an election takes a few seconds; if this lasts, look at the logs of these stores",
}


class Outage(msgspec.Struct, frozen=True):
    """Why a partition is unavailable, and the stores to look at."""

    reason: Reason
    stores: tuple[str, ...]

    @property
    def cause(self) -> str:
        """What is wrong, for people."""
        named = ", ".join(self.stores)
        match self.reason:
            case Reason.DATA_LOST:
                return f"no replica is left, these stores run on other volumes than the ones that held them: {named}"
            case Reason.REPLICA_DAMAGED:
                return f"no replica can serve, those on these stores are damaged: {named}"
            case Reason.NO_QUORUM:
                return f"too few voters are left, these stores are away or run on other volumes: {named}"
            case _:
                return f"no replica leads, though a majority of the voters is there: {named}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return _REMEDIES[self.reason]


def answering_leaders(snapshot: TableSnapshot) -> dict[int, Leader]:
    """The leaders that can answer: the store is registered, and runs on the volume that holds the replica.

    The key of a store that died stays until another store leads, and names a store that may come back empty.
    """
    registered = snapshot.registered
    return {
        partition: leader
        for partition, leader in snapshot.leaders.items()
        if _can_answer(snapshot.partition(partition), leader, registered)
    }


def _can_answer(view: PartitionView, leader: Leader, registered: Mapping[str, StoreRecord]) -> bool:
    """Whether the leader's replica is there; one that is pending counts only where the store has no stable one."""
    stable = view.stable.peers if view.stable is not None else ()
    own = [peer for peer in stable if peer.store == leader.store]
    own = own or [peer for peer in view.peers() if peer.store == leader.store]
    return any(_present(peer, registered) for peer in own)


def outages_of(snapshot: TableSnapshot, leaderless: Iterable[int], loads: Mapping[str, StoreLoad]) -> dict[int, Outage]:
    """Why each of these partitions, which nobody leads, is unavailable."""
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
    there = {peer for peer in peers if _present(peer, registered)}
    if peers and not there and all(peer.store in registered for peer in peers):
        return Outage(Reason.DATA_LOST, _stores(peers))
    sick = {peer for peer in there if name in damaged.get(peer.store, ())}
    if there and sick == there:
        return Outage(Reason.REPLICA_DAMAGED, _stores(sick))
    missing = [peer for side in sides for peer in _missing(side, there)]
    if missing:
        return Outage(Reason.NO_QUORUM, _stores(missing))
    return Outage(Reason.NO_LEADER, _stores(there))


def _sides(view: PartitionView) -> tuple[tuple[Peer, ...], ...]:
    """The configurations each of which needs a majority: two while a change is locked."""
    stable = view.stable.peers if view.stable is not None else ()
    if view.lock is None or view.pending is None:
        return (stable,)
    return stable, view.pending.head


def _missing(side: tuple[Peer, ...], there: Collection[Peer]) -> list[Peer]:
    """The voters that keep a configuration from a majority; empty where it has one."""
    missing = [peer for peer in voters(side) if peer not in there]
    return missing if 2 * len(missing) >= len(voters(side)) else []


def _present(peer: Peer, registered: Mapping[str, StoreRecord]) -> bool:
    """Whether the replica's store is there, with the volume that the replica is on."""
    record = registered.get(peer.store)
    return record is not None and record.volume == peer.volume


def _stores(peers: Iterable[Peer]) -> tuple[str, ...]:
    return tuple(sorted({peer.store for peer in peers}))

"""Orders to hand single partitions over: `leader.target/<t>/<p>`.

The leader transfers to the voter on that store once it has everything and answers. Whoever leads on the ordered store
deletes the key, and so does any leader when the order has expired; both compare that it is still the same order. An
order waits while a change is in its decisive stage, or while pending leaves its target out: the change comes first.

An order expires by this process's monotonic clock, from the moment it was first seen here. A sidecar whose wall clock
was ahead would otherwise delete every order at once, and leaders would never go where they belong.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Delete, Event, KeyValue, Snapshot
from evenkeel.protocol.leader_decision import GroupView
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import LeaderOrder, decode, voters
from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.agent.leadership_transfers import Transfers, successors
from evenkeel_raft.agent.partition_retries import Attempts
from evenkeel_raft.agent.tracked_partitions import Seat
from evenkeel_raft.agent.write_batcher import WriteOne, Writes
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["Orders"]

_LOOK_SECONDS: Final = 1.0


class Orders:
    """All orders as last seen."""

    def __init__(self, context: Context, *, writes: Writes, attempts: Attempts, transfers: Transfers) -> None:
        self._context = context
        self._writes = writes
        self._attempts = attempts
        self._transfers = transfers
        self._orders: dict[Partition, KeyValue] = {}
        self._ends: dict[Partition, tuple[int, float]] = {}
        """By partition: the revision of its order, and when that expires by the clock."""
        self._awaited: set[Partition] = set()

    def begin(self, snapshot: Snapshot) -> None:
        """All orders at one revision."""
        self._orders = {}
        for kv in snapshot.kvs:
            self._take(self._partition(kv.key), kv)
        self._ends = {partition: end for partition, end in self._ends.items() if partition in self._orders}

    def take(self, event: Event) -> Partition:
        """One change; returns the partition it is about."""
        partition = self._partition(event.key)
        if event.kv is None:
            self._orders.pop(partition, None)
            self._ends.pop(partition, None)
        else:
            self._take(partition, event.kv)
        return partition

    def _take(self, partition: Partition, kv: KeyValue) -> None:
        """Look at it again when it expires, for nothing else may be heard of the partition until then."""
        self._orders[partition] = kv
        with suppress(MalformedRecordError):
            seconds = decode(LeaderOrder, kv.value, key=kv.key).seconds
            if self._ends.get(partition, (0, 0.0))[0] != kv.mod_revision:
                self._ends[partition] = (kv.mod_revision, self._context.clock.now() + max(0.0, seconds))
            self._context.work.stir_at(partition, self._ends[partition][1])

    def step(self, seat: Seat, group: GroupView) -> bool:
        """Do what is ordered of a partition led here; whether leadership is on its way."""
        kv = self._orders.get(seat.partition)
        if kv is None:
            return False
        try:
            order = decode(LeaderOrder, kv.value, key=kv.key)
        except MalformedRecordError as error:
            seat.problem = str(error)
            return False
        if order.store == self._context.me.store or self._ends[seat.partition][1] <= self._context.clock.now():
            self._withdraw(seat.partition, kv)
            return False
        return self._follow(order, seat, group)

    def _follow(self, order: LeaderOrder, seat: Seat, group: GroupView) -> bool:
        view = seat.agent.view
        if view is None or not _in_season(order, view, group) or not self._attempts.due(seat.partition):
            return False
        to = next((peer for peer in successors(group) if peer.store == order.store), None)
        if to is None:
            self._look_again(seat.partition)
            return False
        self._transfers.begin(seat.partition, to, why="order")
        return True

    def _look_again(self, partition: Partition) -> None:
        """Nobody tells when a store that was away has everything, and answers."""
        if partition not in self._awaited:
            self._awaited.add(partition)
            self._context.clock.call_at(self._context.clock.now() + _LOOK_SECONDS, partial(self._look, partition))

    def _look(self, partition: Partition) -> None:
        self._awaited.discard(partition)
        self._context.work.stir(partition)

    def _withdraw(self, partition: Partition, kv: KeyValue) -> None:
        write = WriteOne(
            what="order",
            op=Delete(kv.key),
            mod_revision=kv.mod_revision,
            table="",
            done=lambda _: None,
            lost=lambda _: self._context.work.stir(partition),
        )
        self._writes.add(write)

    def _partition(self, key: str) -> Partition:
        table, _, number = key.removeprefix(self._context.keys.leader_targets()).rpartition("/")
        return Partition(table, int(number) if number.isdecimal() else -1)


def _in_season(order: LeaderOrder, view: PartitionView, group: GroupView) -> bool:
    """Whether nothing speaks against it now."""
    if view.lock is not None or group.applied.joint or group.newest != group.applied:
        return False
    steps = view.pending.queue if view.pending is not None else ()
    return all(any(peer.store == order.store for peer in voters(step)) for step in steps)

"""Leadership transfers that the operator orders: `leader.target/<t>/<p>`.

The leader transfers to the voter on the ordered store once that voter has caught up and responds. The leader on the
ordered store then deletes the key, and any leader deletes an expired order; both compare the key's revision. An order
waits while a change is locked or joint, or while pending does not contain the ordered store: the change has priority.

An order expires by this process's monotonic clock, counted from when the process first saw it. With wall clocks, a
sidecar whose clock is ahead would delete every order at once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Delete, Event, KeyValue, Snapshot
from evenkeel.protocol.leader_decision import GroupView
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import LeaderOrder, decode, voters
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.agent.leadership_transfers import LeadershipTransfers, successors
from evenkeel_raft.agent.partition_retries import PartitionRetries
from evenkeel_raft.agent.tracked_partitions import TrackedPartition
from evenkeel_raft.agent.write_batcher import KeyWrite, WriteBatcher
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["OrderedTransfers"]

_SUCCESSOR_POLL_SECONDS: Final = 1.0
"""How often the leader checks whether the ordered store can take over; nothing else reports that."""


class OrderedTransfers:
    """All orders as last seen."""

    def __init__(
        self, context: AgentContext, *, writes: WriteBatcher, retries: PartitionRetries, transfers: LeadershipTransfers
    ) -> None:
        self._context = context
        self._writes = writes
        self._retries = retries
        self._transfers = transfers
        self._orders: dict[Partition, KeyValue] = {}
        self._ends: dict[Partition, tuple[int, float]] = {}
        """By partition: the revision of its order, and the monotonic time at which the order expires."""

    def load(self, snapshot: Snapshot) -> None:
        """Replace all orders by a listing."""
        self._orders = {}
        for kv in snapshot.kvs:
            self._take(self._partition(kv.key), kv)
        self._ends = {partition: end for partition, end in self._ends.items() if partition in self._orders}

    def apply(self, event: Event) -> Partition:
        """Apply one event; return its partition."""
        partition = self._partition(event.key)
        if event.kv is None:
            self._orders.pop(partition, None)
            self._ends.pop(partition, None)
        else:
            self._take(partition, event.kv)
        return partition

    def _take(self, partition: Partition, kv: KeyValue) -> None:
        """Record an order; a new revision starts a new expiry."""
        self._orders[partition] = kv
        with suppress(MalformedRecordError):
            seconds = decode(LeaderOrder, kv.value, key=kv.key).seconds
            if self._ends.get(partition, (0, 0.0))[0] != kv.mod_revision:
                self._ends[partition] = (kv.mod_revision, self._context.clock.now() + max(0.0, seconds))

    def reconcile(self, tracked: TrackedPartition, group: GroupView) -> bool:
        """Carry out the order for a partition led by this store; return whether a transfer was started."""
        kv = self._orders.get(tracked.partition)
        if kv is None:
            return False
        try:
            order = decode(LeaderOrder, kv.value, key=kv.key)
        except MalformedRecordError as error:
            tracked.problem = str(error)
            return False
        remaining = self._ends[tracked.partition][1] - self._context.clock.now()
        if order.store == self._context.me.store or remaining <= 0:
            self._withdraw(tracked.partition, kv)
            return False
        self._context.queue.add(tracked.partition, after=remaining)
        return self._transfer(order, tracked, group)

    def _transfer(self, order: LeaderOrder, tracked: TrackedPartition, group: GroupView) -> bool:
        view = tracked.agent.view
        if view is None or not _may_transfer(order, view, group) or not self._retries.due(tracked.partition):
            return False
        to = next((peer for peer in successors(group) if peer.store == order.store), None)
        if to is None:
            self._context.queue.add(tracked.partition, after=_SUCCESSOR_POLL_SECONDS)
            return False
        self._transfers.begin(tracked.partition, to, why="order")
        return True

    def _withdraw(self, partition: Partition, kv: KeyValue) -> None:
        write = KeyWrite(
            what="order",
            op=Delete(kv.key),
            mod_revision=kv.mod_revision,
            table="",
            on_written=lambda _: None,
            on_conflict=lambda _: self._context.queue.add(partition),
        )
        self._writes.add(write)

    def _partition(self, key: str) -> Partition:
        table, _, number = key.removeprefix(self._context.keys.leader_targets()).rpartition("/")
        return Partition(table, int(number) if number.isdecimal() else -1)


def _may_transfer(order: LeaderOrder, view: PartitionView, group: GroupView) -> bool:
    """Whether no change has priority over the order."""
    if view.lock is not None or group.applied.joint or group.newest != group.applied:
        return False
    steps = view.pending.queue if view.pending is not None else ()
    return all(any(peer.store == order.store for peer in voters(step)) for step in steps)

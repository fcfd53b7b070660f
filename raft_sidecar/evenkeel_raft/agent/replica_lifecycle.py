"""Starting replicas that this volume is to have, and deleting those it is not.

Absence is never exclusion. A replica goes only after its partition's keys, read linearizably at one revision, left it
out, *and then* the group's leader, sure of its leadership, said that it is no member; or with its table, see `drops`.
"""

from __future__ import annotations

from evenkeel.errors import InvalidInputError, WireError
from evenkeel.protocol.records import ReplicaId
from evenkeel.protocol.replica_decision import Start
from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.agent.agent_queue import Pool
from evenkeel_raft.agent.partition_reader import Reader
from evenkeel_raft.agent.partition_retries import Attempts
from evenkeel_raft.agent.tracked_partitions import Seat, Seats
from evenkeel_raft.errors import DiskFullError
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["Replicas"]


class Replicas:
    """What is done to replicas as a whole; `pool` runs it."""

    def __init__(self, context: Context, *, seats: Seats, reader: Reader, pool: Pool, attempts: Attempts) -> None:
        self._context = context
        self._seats = seats
        self._reader = reader
        self._pool = pool
        self._attempts = attempts

    def step_without(self, seat: Seat) -> None:
        """No replica of the partition runs here: start one if there should be, else let the seat go."""
        partition = seat.partition
        seat.agent.held = self._context.groups.newest_held(partition)
        wanted = seat.agent.to_start()
        if wanted is not None:
            if self._attempts.due(partition) and self._pool.room(partition):
                self._pool.run(partition, lambda: self._start(partition, wanted))
        elif not seat.names(self._context.me.store) and not seat.problem:
            self._attempts.succeeded(partition)
            self._seats.leave(partition)

    def step_with(self, seat: Seat, running: ReplicaId) -> bool:
        """A replica runs here: see whether it may go; whether that is being found out or done."""
        partition = seat.partition
        if seat.agent.cleared == running:
            if self._attempts.due(partition) and self._pool.room(partition):
                stores = sorted({peer.store for peer in seat.agent.view.peers()}) if seat.agent.view else []
                self._pool.run(partition, lambda: self._ask_and_delete(partition, running, stores))
            return True
        if seat.agent.suspects(running):
            self._reader.want(partition)
            return True
        return False

    async def _start(self, partition: Partition, wanted: Start) -> None:
        try:
            await self._context.groups.start(partition, wanted)
        except (DiskFullError, InvalidInputError, WireError) as error:
            self._context.counters.failures["start"] += 1
            self._attempts.put_off(partition, f"a replica cannot be started: {error}")
        else:
            self._context.counters.starts += 1
            self._attempts.succeeded(partition)

    async def _ask_and_delete(self, partition: Partition, running: ReplicaId, stores: list[str]) -> None:
        others = [store for store in stores if store != self._context.me.store]
        if await self._context.groups.ask_leader(partition, running, others):
            await self.destroy(partition, running)
        else:
            self._context.counters.failures["ask"] += 1
            self._attempts.put_off(partition, "no leader says that the replica, which is in no list, may be deleted")

    async def destroy(self, partition: Partition, running: ReplicaId) -> None:
        """Delete a replica that may go."""
        try:
            await self._context.groups.destroy(partition, running)
        except (DiskFullError, WireError) as error:
            self._context.counters.failures["delete"] += 1
            self._attempts.put_off(partition, f"a replica cannot be deleted: {error}")
        else:
            self._context.counters.deletions += 1
            self._attempts.succeeded(partition)

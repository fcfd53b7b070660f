"""Starts the replicas that this volume should have, and deletes those that it should not.

A missing key never proves that a replica is excluded. A replica is deleted only after a linearizable read of its
partition's keys at one revision excluded it *and then* the group's leader, confirmed by a quorum, said that it is no
member; or when its table was dropped, see `table_drops`.
"""

from __future__ import annotations

from evenkeel.errors import InvalidInputError, WireError
from evenkeel.protocol.records import ReplicaId
from evenkeel.protocol.replica_decision import Start
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.agent.partition_jobs import PartitionJobs
from evenkeel_raft.agent.partition_reader import PartitionReader
from evenkeel_raft.agent.partition_retries import PartitionRetries
from evenkeel_raft.agent.tracked_partitions import TrackedPartition, TrackedPartitions
from evenkeel_raft.errors import DiskFullError
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["ReplicaLifecycle"]


class ReplicaLifecycle:
    """Starts and deletes replicas; `jobs` runs the actions."""

    def __init__(
        self,
        context: AgentContext,
        *,
        partitions: TrackedPartitions,
        reader: PartitionReader,
        jobs: PartitionJobs,
        retries: PartitionRetries,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._reader = reader
        self._jobs = jobs
        self._retries = retries

    def reconcile_absent(self, tracked: TrackedPartition) -> None:
        """Reconcile a partition without a replica here: start the assigned one, or stop tracking the partition."""
        partition = tracked.partition
        tracked.agent.held = self._context.groups.newest_held(partition)
        wanted = tracked.agent.to_start()
        if wanted is not None:
            if self._retries.due(partition) and self._jobs.has_slot(partition):
                self._jobs.run(partition, lambda: self._start(partition, wanted))
        elif not tracked.names(self._context.me.store) and not tracked.problem:
            self._retries.succeeded(partition)
            self._partitions.untrack(partition)

    def reconcile_running(self, tracked: TrackedPartition, running: ReplicaId) -> bool:
        """Reconcile a running replica; return whether it may have to be deleted, so that nothing else is done."""
        partition = tracked.partition
        if tracked.agent.confirmed_excluded == running:
            if self._retries.due(partition) and self._jobs.has_slot(partition):
                stores = sorted({peer.store for peer in tracked.agent.view.peers()}) if tracked.agent.view else []
                self._jobs.run(partition, lambda: self._ask_and_delete(partition, running, stores))
            return True
        if tracked.agent.seems_excluded(running):
            self._reader.request(partition)
            return True
        return False

    async def _start(self, partition: Partition, wanted: Start) -> None:
        try:
            await self._context.groups.start(partition, wanted)
        except (DiskFullError, InvalidInputError, WireError) as error:
            self._context.counters.failures["start"] += 1
            self._retries.retry_later(partition, f"starting the replica failed: {error}")
        else:
            self._context.counters.starts += 1
            self._retries.succeeded(partition)

    async def _ask_and_delete(self, partition: Partition, running: ReplicaId, stores: list[str]) -> None:
        others = [store for store in stores if store != self._context.me.store]
        if await self._context.groups.ask_leader(partition, running, others):
            await self.destroy(partition, running)
        else:
            self._context.counters.failures["ask"] += 1
            self._retries.retry_later(partition, "the replica is unassigned, but no leader confirmed its removal")

    async def destroy(self, partition: Partition, running: ReplicaId) -> None:
        """Delete a replica that is known to be excluded."""
        try:
            await self._context.groups.destroy(partition, running)
        except (DiskFullError, WireError) as error:
            self._context.counters.failures["delete"] += 1
            self._retries.retry_later(partition, f"deleting the replica failed: {error}")
        else:
            self._context.counters.deletions += 1
            self._retries.succeeded(partition)

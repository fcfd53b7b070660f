"""Deletes the replicas of dropped tables, then removes the store from the tombstone.

The removal is a promise: this store starts nothing of the table any more. It holds because a store that sees the
tombstone no longer sees the table's record, which every start needs, and because the store waits for a start in
progress and undoes it before it confirms.
"""

from __future__ import annotations

import logging

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Put
from evenkeel.protocol.keys import table_name
from evenkeel.protocol.table_lifecycle import confirm_drop
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.agent.partition_jobs import PartitionJobs
from evenkeel_raft.agent.partition_retries import PartitionRetries
from evenkeel_raft.agent.replica_lifecycle import ReplicaLifecycle
from evenkeel_raft.agent.table_states import TableStates
from evenkeel_raft.agent.tracked_partitions import TrackedPartitions
from evenkeel_raft.agent.write_batcher import KeyWrite, WriteBatcher
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["TableDrops"]

log = logging.getLogger(__name__)


class TableDrops:
    """Carries out the drops of tables with a tombstone."""

    def __init__(
        self,
        context: AgentContext,
        *,
        partitions: TrackedPartitions,
        tables: TableStates,
        replicas: ReplicaLifecycle,
        jobs: PartitionJobs,
        retries: PartitionRetries,
        writes: WriteBatcher,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._tables = tables
        self._replicas = replicas
        self._jobs = jobs
        self._retries = retries
        self._writes = writes
        self._to_check: set[str] = set()

    def check(self, table: str) -> None:
        """Check soon whether anything of a dropped table is left on this store.

        A store without replicas of the table has no partition to reconcile; any partition of the table will do.
        """
        self._to_check.add(table)
        self._context.queue.add(Partition(table, 0))

    def reconcile(self, partition: Partition) -> None:
        """Delete this store's replica of a dropped table, if there is one."""
        running = self._context.groups.running().get(partition)
        if running is None:
            self._retries.succeeded(partition)
            self._to_check.add(partition.table)
        elif self._retries.due(partition) and self._jobs.has_slot(partition):
            self._jobs.run(partition, lambda: self._replicas.destroy(partition, running))

    def confirm_finished(self) -> None:
        """Confirm the drop of tables of which nothing is left on this store."""
        tables, self._to_check = self._to_check, set()
        for table in tables:
            self._partitions.untrack_table(table)
            left = [*self._context.groups.running(), *self._jobs]
            if not any(partition.table == table for partition in left):
                self._confirm(table)

    def _confirm(self, table: str) -> None:
        me, tombstone = self._context.me, self._tables.tombstone(table)
        try:
            txn = None if tombstone is None else confirm_drop(tombstone, store=me.store, volume=me.volume)
        except MalformedRecordError as error:
            log.warning("cannot confirm the drop: %s", error, extra={"table": table_name(table)})
            return
        if tombstone is None or txn is None:
            return
        (put,) = txn.success
        assert isinstance(put, Put)
        self._writes.add(
            KeyWrite(
                what="confirm",
                op=put,
                mod_revision=tombstone.mod_revision,
                table="",
                on_written=lambda _: None,
                on_conflict=lambda _: self.check(table),
            )
        )

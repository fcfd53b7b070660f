"""Dropped tables: every replica here goes, and then the store strikes itself off the tombstone.

That is a promise: from the tombstone on nothing of the table is started here. It holds because whoever sees the
tombstone no longer sees the table's record, without which nothing is started, and because a start that was under way
is waited for and undone before the store confirms.
"""

from __future__ import annotations

import logging

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Put
from evenkeel.protocol.keys import table_name
from evenkeel.protocol.table_lifecycle import confirm_drop
from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.agent.agent_queue import Pool
from evenkeel_raft.agent.partition_retries import Attempts
from evenkeel_raft.agent.replica_lifecycle import Replicas
from evenkeel_raft.agent.table_states import Tables
from evenkeel_raft.agent.tracked_partitions import Seats
from evenkeel_raft.agent.write_batcher import WriteOne, Writes
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["Drops"]

log = logging.getLogger(__name__)


class Drops:
    """What is done about tables with a tombstone."""

    def __init__(
        self,
        context: Context,
        *,
        seats: Seats,
        tables: Tables,
        replicas: Replicas,
        pool: Pool,
        attempts: Attempts,
        writes: Writes,
    ) -> None:
        self._context = context
        self._seats = seats
        self._tables = tables
        self._replicas = replicas
        self._pool = pool
        self._attempts = attempts
        self._writes = writes
        self._touched: set[str] = set()

    def touch(self, table: str) -> None:
        """Something happened to a dropped table: see with the next `settle` whether it is gone."""
        self._touched.add(table)

    def step(self, partition: Partition) -> None:
        """Delete this replica of a dropped table, if it is here."""
        running = self._context.groups.running().get(partition)
        if running is None:
            self._attempts.succeeded(partition)
            self.touch(partition.table)
        elif self._attempts.due(partition) and self._pool.room(partition):
            self._pool.run(partition, lambda: self._replicas.destroy(partition, running))

    def settle(self) -> None:
        """Confirm the drop of tables of which nothing is left here."""
        touched, self._touched = self._touched, set()
        for table in touched:
            self._seats.leave_table(table)
            left = [*self._context.groups.running(), *self._pool]
            if not any(partition.table == table for partition in left):
                self._confirm(table)

    def _again(self, table: str) -> None:
        """Another store confirmed first. The watch may have shown that while our own word was still under way."""
        self.touch(table)
        self._context.work.stir_all(())

    def _confirm(self, table: str) -> None:
        me, tombstone = self._context.me, self._tables.tombstone(table)
        try:
            txn = None if tombstone is None else confirm_drop(tombstone, store=me.store, volume=me.volume)
        except MalformedRecordError as error:
            log.warning("the drop cannot be confirmed: %s", error, extra={"table": table_name(table)})
            return
        if tombstone is None or txn is None:
            return
        (put,) = txn.success
        assert isinstance(put, Put)
        self._writes.add(
            WriteOne(
                what="confirm",
                op=put,
                mod_revision=tombstone.mod_revision,
                table="",
                done=lambda _: None,
                lost=lambda _: self._again(table),
            )
        )

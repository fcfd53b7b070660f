"""Batches writes that depend on one key each, up to sixty in a transaction.

Leader records, fulfilled orders and confirmed drops each write or delete one key; they compare that the key is as it
was read and that its table still exists. When a compare fails, nothing is written, and the same round trip reads the
keys: changed ones are reported to their writers, the others are retried, and those of deleted tables are discarded.
After a lost response all are retried as they were; one that had succeeded is then reported as changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from evenkeel.errors import UnreachableError
from evenkeel.metastore.metastore_api import Compare, Delete, Get, KeyValue, Put, Txn
from evenkeel.runtime.backoff import Backoff
from evenkeel_raft.agent.agent_context import AgentContext

__all__ = ["KeyWrite", "WriteBatcher"]

_BATCH = 60


class KeyWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write of one key: `on_written` receives its revision, `on_conflict` the key as it is instead.

    `table` is the key of a record that must exist, so that nothing is written for a dropped table.
    """

    what: str
    op: Put | Delete
    mod_revision: int
    table: str
    on_written: Callable[[int], None]
    on_conflict: Callable[[KeyValue | None], None]


class WriteBatcher:
    """Pending writes by key; a later write of a key replaces an earlier one."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._queue: dict[str, KeyWrite] = {}
        self._in_flight: set[str] = set()
        self._wake = asyncio.Event()

    def add(self, write: KeyWrite) -> None:
        """Write soon; ignored while a write of the same key is in flight, whose outcome notifies its writer."""
        if write.op.key not in self._in_flight:
            self._queue[write.op.key] = write
            self._wake.set()

    async def run(self) -> None:
        """Write the pending keys batch by batch, until cancelled."""
        backoff = Backoff(clock=self._context.clock, rng=self._context.rng, first=self._context.settings.retry_seconds)
        while True:
            await self._wake.wait()
            while self._queue:
                batch = [self._queue.pop(key) for key in list(self._queue)[:_BATCH]]
                self._in_flight = {write.op.key for write in batch}
                try:
                    await self._run(batch)
                    backoff.reset()
                except UnreachableError:
                    self._count(batch, "unknown")
                    self._requeue(batch)
                    await backoff.wait()
                finally:
                    self._in_flight = set()
            self._wake.clear()

    async def _run(self, batch: list[KeyWrite]) -> None:
        tables = sorted({write.table for write in batch if write.table})
        compares = (
            *(Compare(table, "version", ">", 0) for table in tables),
            *(Compare(write.op.key, "mod", "=", write.mod_revision) for write in batch),
        )
        reads = tuple(Get(key) for key in (*tables, *(write.op.key for write in batch)))
        result = await self._context.metastore.txn(Txn(compares, tuple(write.op for write in batch), reads))
        self._in_flight = set()
        if result.succeeded:
            self._count(batch, "done")
            for write in batch:
                write.on_written(result.revision)
        else:
            self._handle_conflicts(batch, {kv.key: kv for op in result.results for kv in op.kvs})

    def _handle_conflicts(self, batch: list[KeyWrite], found: dict[str, KeyValue]) -> None:
        existing = [write for write in batch if not write.table or write.table in found]
        others = [write for write in existing if write.mod_revision == _mod(found.get(write.op.key))]
        conflicting = [write for write in existing if write not in others]
        self._count(conflicting, "refused")
        self._requeue(others)
        for write in conflicting:
            write.on_conflict(found.get(write.op.key))

    def _requeue(self, batch: list[KeyWrite]) -> None:
        for write in batch:
            self._queue.setdefault(write.op.key, write)

    def _count(self, batch: list[KeyWrite], outcome: str) -> None:
        for write in batch:
            self._context.counters.transactions[write.what, outcome] += 1


def _mod(kv: KeyValue | None) -> int:
    return 0 if kv is None else kv.mod_revision

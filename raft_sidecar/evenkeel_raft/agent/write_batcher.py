"""Small writes that depend on one key each, sixty to a transaction.

Reports of leaders, fulfilled orders and confirmed drops: each writes or deletes one key and compares that it is as it
was read, and that the table it belongs to still exists. When a comparison fails nothing was written; the keys are read
in the same round trip, those that had changed are told so, and the others are tried again; those whose table is gone
are forgotten. After a lost answer all are tried again as they were: what had landed is then found to have changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from evenkeel.errors import UnreachableError
from evenkeel.metastore.metastore_api import Compare, Delete, Get, KeyValue, Put, Txn
from evenkeel.runtime.backoff import Backoff
from evenkeel_raft.agent.agent_context import Context

__all__ = ["WriteOne", "Writes"]

_BATCH = 60


class WriteOne(msgspec.Struct, frozen=True, kw_only=True):
    """One key to write: `done` is called when that has happened, `lost` with the key as it is instead.

    `table` is the key of a record that must exist, so that nothing is written behind a table that was dropped.
    """

    what: str
    op: Put | Delete
    mod_revision: int
    table: str
    done: Callable[[int], None]
    lost: Callable[[KeyValue | None], None]


class Writes:
    """What waits to be written, by key; of two writes of a key the later one counts."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queue: dict[str, WriteOne] = {}
        self._under_way: set[str] = set()
        self._some = asyncio.Event()

    def add(self, write: WriteOne) -> None:
        """Write it soon. While another write of its key is under way it is not taken: look again when that ended."""
        if write.op.key not in self._under_way:
            self._queue[write.op.key] = write
            self._some.set()

    async def run(self) -> None:
        """Write what waits, batch after batch, until cancelled."""
        backoff = Backoff(clock=self._context.clock, rng=self._context.rng, first=self._context.settings.retry_seconds)
        while True:
            await self._some.wait()
            while self._queue:
                batch = [self._queue.pop(key) for key in list(self._queue)[:_BATCH]]
                self._under_way = {write.op.key for write in batch}
                try:
                    await self._run(batch)
                    backoff.reset()
                except UnreachableError:
                    self._count(batch, "unknown")
                    self._again(batch)
                    await backoff.wait()
                finally:
                    self._under_way = set()
            self._some.clear()

    async def _run(self, batch: list[WriteOne]) -> None:
        tables = sorted({write.table for write in batch if write.table})
        compares = (
            *(Compare(table, "version", ">", 0) for table in tables),
            *(Compare(write.op.key, "mod", "=", write.mod_revision) for write in batch),
        )
        reads = tuple(Get(key) for key in (*tables, *(write.op.key for write in batch)))
        result = await self._context.metastore.txn(Txn(compares, tuple(write.op for write in batch), reads))
        self._under_way = set()
        if result.succeeded:
            self._count(batch, "done")
            for write in batch:
                write.done(result.revision)
        else:
            self._sort_out(batch, {kv.key: kv for op in result.results for kv in op.kvs})

    def _sort_out(self, batch: list[WriteOne], found: dict[str, KeyValue]) -> None:
        standing = [write for write in batch if not write.table or write.table in found]
        others = [write for write in standing if write.mod_revision == _mod(found.get(write.op.key))]
        losers = [write for write in standing if write not in others]
        self._count(losers, "refused")
        self._again(others)
        for write in losers:
            write.lost(found.get(write.op.key))

    def _again(self, batch: list[WriteOne]) -> None:
        for write in batch:
            self._queue.setdefault(write.op.key, write)

    def _count(self, batch: list[WriteOne], outcome: str) -> None:
        for write in batch:
            self._context.counters.transactions[write.what, outcome] += 1


def _mod(kv: KeyValue | None) -> int:
    return 0 if kv is None else kv.mod_revision

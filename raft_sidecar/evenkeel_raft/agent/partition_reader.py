"""Linearizable reads of partitions' keys, many partitions to a round trip.

A new leader begins with one, and so does whoever suspects that a replica may go. When a store fails, the others come
to lead hundreds of groups at once: twenty-five of them fit one read-only transaction, which reads at one revision.
What a reader wants to rest on the read (the term it leads, the replica it has) is taken down when the read leaves, so
that an election in between asks for another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from evenkeel.errors import UnreachableError
from evenkeel.metastore.metastore_api import MAX_TXN_OPS, Get, KeyValue, Txn
from evenkeel.protocol.records import ReplicaId
from evenkeel.runtime.backoff import Backoff
from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["Reader", "Ticket"]

_KEYS = 5
"""Read of each partition: stable, pending, planned, lock, and who is reported to lead."""


class Ticket(NamedTuple):
    """What was so when a read left."""

    partition: Partition
    term: int
    """In which this store's replica led, 0 if it did not."""
    running: ReplicaId | None


OnRead = Callable[[Ticket, Mapping[str, KeyValue], int], None]


class Reader:
    """Partitions waiting to be read; `on_read` gets each with what was found, and at which revision."""

    def __init__(self, context: Context, on_read: OnRead) -> None:
        self._context = context
        self._on_read = on_read
        self._queue: dict[Partition, None] = {}
        self._under_way: set[Partition] = set()
        self._some = asyncio.Event()
        self._backoff = Backoff(clock=context.clock, rng=context.rng, first=context.settings.retry_seconds)

    def want(self, partition: Partition) -> None:
        """Read the partition soon, unless that is about to happen anyway."""
        if partition not in self._under_way:
            self._queue[partition] = None
            self._some.set()

    async def run(self) -> None:
        """Read what is wanted, until cancelled."""
        slots = asyncio.Semaphore(self._context.settings.transactions)
        self._under_way.clear()
        async with asyncio.TaskGroup() as reads:
            while True:
                await self._some.wait()
                while self._queue:
                    await slots.acquire()
                    reads.create_task(self._read(self._next_batch())).add_done_callback(lambda _: slots.release())
                self._some.clear()

    def _next_batch(self) -> list[Partition]:
        batch: list[Partition] = []
        tables: set[str] = set()
        for partition in self._queue:
            tables.add(partition.table)
            if _KEYS * (len(batch) + 1) + len(tables) > MAX_TXN_OPS:
                break
            batch.append(partition)
        for partition in batch:
            del self._queue[partition]
        self._under_way.update(batch)
        return batch

    async def _read(self, batch: list[Partition]) -> None:
        tickets = [self._ticket(partition) for partition in batch]
        try:
            result = await self._context.metastore.txn(Txn(success=self._gets(batch)))
        except UnreachableError:
            # Whoever still needs the read will ask for it again.
            await self._backoff.wait()
        else:
            self._backoff.reset()
            found = {kv.key: kv for op in result.results for kv in op.kvs}
            self._context.counters.reads += len(batch)
            for ticket in tickets:
                self._on_read(ticket, found, result.revision)
        finally:
            self._under_way.difference_update(batch)
            self._context.work.stir_all(batch)

    def _ticket(self, partition: Partition) -> Ticket:
        groups = self._context.groups
        group = groups.leading(partition)
        return Ticket(partition, 0 if group is None else group.term, groups.running().get(partition))

    def _gets(self, batch: list[Partition]) -> tuple[Get, ...]:
        keys = self._context.keys
        gets = [Get(keys.table(table)) for table in sorted({partition.table for partition in batch})]
        for partition in batch:
            own = keys.partition(*partition)
            gets += map(Get, (own.stable, own.pending, own.planned, own.lock, keys.leader(*partition)))
        return tuple(gets)

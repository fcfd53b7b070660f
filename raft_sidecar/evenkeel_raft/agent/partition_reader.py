"""Batched linearizable reads of partitions' keys.

Each new leader does such a read, and so does a store that may delete a replica. When a store fails, others become
leaders of hundreds of groups at once; one read-only transaction reads twenty-five partitions at one revision. The
facts that a read is meant to confirm (the leader's term, the running replica) are captured when it is sent, so that an
election during the read causes another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from evenkeel.errors import UnreachableError
from evenkeel.metastore.metastore_api import MAX_TXN_OPS, Get, KeyValue, Txn
from evenkeel.protocol.records import ReplicaId
from evenkeel.runtime.backoff import Backoff
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["PartitionReader", "ReadRequest"]

_KEYS = 5
"""Keys read for each partition: stable, pending, planned, lock and the leader record."""


class ReadRequest(NamedTuple):
    """A partition to read, and the state of its replica when the read was sent."""

    partition: Partition
    term: int
    """The term in which this store's replica led; 0 if it did not lead."""
    running: ReplicaId | None


OnRead = Callable[[ReadRequest, Mapping[str, KeyValue], int], None]


class PartitionReader:
    """Queue of partitions to read; `on_read` receives each request with the keys and revision it found."""

    def __init__(self, context: AgentContext, on_read: OnRead) -> None:
        self._context = context
        self._on_read = on_read
        self._queue: dict[Partition, None] = {}
        self._in_flight: set[Partition] = set()
        self._wake = asyncio.Event()
        self._backoff = Backoff(clock=context.clock, rng=context.rng, first=context.settings.retry_seconds)

    def request(self, partition: Partition) -> None:
        """Read the partition soon, unless a read is in flight."""
        if partition not in self._in_flight:
            self._queue[partition] = None
            self._wake.set()

    async def run(self) -> None:
        """Read the requested partitions, until cancelled."""
        slots = asyncio.Semaphore(self._context.settings.transactions)
        self._in_flight.clear()
        async with asyncio.TaskGroup() as reads:
            while True:
                await self._wake.wait()
                while self._queue:
                    await slots.acquire()
                    reads.create_task(self._read(self._next_batch())).add_done_callback(lambda _: slots.release())
                self._wake.clear()

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
        self._in_flight.update(batch)
        return batch

    async def _read(self, batch: list[Partition]) -> None:
        requests = [self._request(partition) for partition in batch]
        try:
            result = await self._context.metastore.txn(Txn(success=self._gets(batch)))
        except UnreachableError:
            # Reconciling the partitions requests the read again where it is still needed.
            await self._backoff.wait()
        else:
            self._backoff.reset()
            found = {kv.key: kv for op in result.results for kv in op.kvs}
            self._context.counters.reads += len(batch)
            for request in requests:
                self._on_read(request, found, result.revision)
        finally:
            self._in_flight.difference_update(batch)
            self._context.queue.add_all(batch)

    def _request(self, partition: Partition) -> ReadRequest:
        groups = self._context.groups
        group = groups.leading(partition)
        return ReadRequest(partition, 0 if group is None else group.term, groups.running().get(partition))

    def _gets(self, batch: list[Partition]) -> tuple[Get, ...]:
        keys = self._context.keys
        gets = [Get(keys.table(table)) for table in sorted({partition.table for partition in batch})]
        for partition in batch:
            own = keys.partition(*partition)
            gets += map(Get, (own.stable, own.pending, own.planned, own.lock, keys.leader(*partition)))
        return tuple(gets)

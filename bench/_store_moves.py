"""What moving replicas costs: clients that write meanwhile, and bytes copied for targets that were superseded.

A rebalance moves one of the two replicas of every partition of a table to the third store; its leader stays, so that
what a write has to do is the same before and meanwhile. It goes unthrottled first, then under a limit by which copying
alone takes three tenths of that; a client that writes one row after the other meanwhile is compared with itself just
before. Targets are superseded by asking for five replicas, and for three again in mid copy.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from bench._store_cluster import TABLE, BenchCluster, bench_cluster
from bench._store_rows import KEYS, batches_of
from bench._turns import median_row
from bench.report import Row
from evenkeel.client import Client
from evenkeel.protocol.records import Retarget
from tests.process.process_cluster import StoreProcesses

__all__ = ["move_rows"]

PARTITIONS: Final = 6
MILLIONS: Final = 5
WINDOWS: Final = 5
BEFORE_SECONDS: Final = 4.0
LONGER: Final = 0.3
SUPERSEDED_ROUNDS: Final = 3
SUPERSEDED_RATE: Final = 4 << 20


def move_rows() -> Iterator[Row]:
    """Writes during a rebalance, how long that takes, and what was copied in vain."""
    yield from asyncio.run(_rebalances())
    yield from asyncio.run(_superseded())


def _fill(client: Client, millions: int) -> None:
    for number in range(millions):
        client.table(TABLE).upsert(pa.Table.from_batches(batches_of(KEYS, 1, first=number * KEYS)))


# Writes meanwhile


async def _rebalances() -> list[Row]:
    async with bench_cluster(partitions=PARTITIONS, replicas=2) as cluster:
        moves = _Moves(cluster)
        free = statistics.median([(await moves.pair())[2] for _ in range(WINDOWS)])
        copied = await _total(cluster, "snapshot_bytes_total") / WINDOWS
    # Every byte goes out of one store and into another, and a store has one limit for both.
    rate = 2 * copied / len(cluster.stores) / (LONGER * free)
    flags = ("--bytes-per-second", str(int(rate)))
    async with bench_cluster(partitions=PARTITIONS, replicas=2, flags=flags) as cluster:
        moves = _Moves(cluster)
        pairs = [await moves.pair() for _ in range(WINDOWS)]
    p99 = median_row(
        "store",
        "p99 of writes during a throttled rebalance, beside before; want <= 1.1",
        "ms",
        [(during, before) for before, during, _ in pairs],
    )
    taken = statistics.median(seconds for _, _, seconds in pairs)
    return [p99, Row("store", "throttled rebalance, beside unthrottled; want <= 1.5", taken, "s", free, taken / free)]


class _Moves:
    """A client that writes, before and while replicas move to and fro."""

    def __init__(self, cluster: BenchCluster) -> None:
        self._cluster = cluster
        self._turn = 0
        self._rows = batches_of(1, 500)

    async def pair(self) -> tuple[float, float, float]:
        """The p99 before and during, in milliseconds, and how long the rebalance took."""
        with self._cluster.connect() as client:
            if not self._turn:
                await self._move()
                await asyncio.to_thread(_fill, client, MILLIONS)
            await self._cluster.until_folded()
            before = await self._write_while(client, asyncio.sleep(BEFORE_SECONDS))
            began = time.perf_counter()
            during = await self._write_while(client, self._move())
            taken = time.perf_counter() - began
        return before, during, taken

    async def _move(self) -> None:
        """Put what every partition has beside its leader onto the other store."""
        stores, self._turn = sorted(self._cluster.stores), self._turn + 1
        away = 1 + self._turn % 2
        await self._cluster.place([(stores[n % 3], stores[(n + away) % 3]) for n in range(PARTITIONS)])
        await self._cluster.until_settled()

    async def _write_while(self, client: Client, work: Coroutine[Any, Any, None]) -> float:
        doing = asyncio.create_task(work)
        latencies: list[float] = []
        while not doing.done():
            began = time.perf_counter()
            await asyncio.to_thread(client.table(TABLE).upsert, random.choice(self._rows))
            latencies.append(1000 * (time.perf_counter() - began))
        await doing
        return statistics.quantiles(latencies, n=100, method="inclusive")[-1]


# What is copied in vain


class _Waste(NamedTuple):
    """Megabytes copied to replicas that were not wanted any more in the end."""

    all: float
    late: float
    """More than a second after the new target was written."""


async def _superseded() -> list[Row]:
    """All three modes on one scenario: every byte of it is copied to a replica that the last target does not have."""
    flags = ("--bytes-per-second", str(SUPERSEDED_RATE))
    async with bench_cluster(stores=5, partitions=PARTITIONS, flags=flags) as cluster:
        with cluster.connect() as client:
            await asyncio.to_thread(_fill, client, 1)
        await cluster.until_folded()
        queued = await _superseded_in(cluster, Retarget.QUEUE)
        rows = [Row("store", "bytes copied for superseded targets, retarget Queue", queued.all, "MB")]
        for mode in (Retarget.ADJUST, Retarget.CANCEL):
            waste = await _superseded_in(cluster, mode)
            case = f"bytes copied for superseded targets, retarget {mode.value}"
            rows += [
                Row("store", f"{case}, beside Queue; want <= 0.3", waste.all, "MB", queued.all, waste.all / queued.all),
                Row("store", f"{case}, later than 1 s after the new target was written; want 0", waste.late, "MB"),
            ]
        return rows


async def _superseded_in(cluster: BenchCluster, mode: Retarget) -> _Waste:
    """Ask for five replicas, and for three again in mid copy, some times.

    Nothing else is copied, so all bytes that sidecars sent count: those of copies that were called off, and those of
    copies that were completed and then deleted.
    """
    begun, late = await _copied(cluster), 0.0
    for _ in range(SUPERSEDED_ROUNDS):
        before = await _copied(cluster)
        await cluster.reconcile(5, retarget=mode)

        async def copying(before: float = before) -> bool:
            return await _copied(cluster) > before

        await cluster.until(copying)
        await cluster.reconcile(3, retarget=mode)
        await asyncio.sleep(1.0)
        after_a_second = await _copied(cluster)
        await cluster.until_settled()
        await cluster.until(partial(_nothing_filled, cluster))
        late += await _copied(cluster) - after_a_second
    return _Waste(all=(await _copied(cluster) - begun) / 1e6, late=late / 1e6)


async def _nothing_filled(cluster: BenchCluster) -> bool:
    return not await _total(cluster, "filling_members")


async def _copied(cluster: BenchCluster) -> float:
    return await _total(cluster, "snapshot_bytes_total")


async def _total(cluster: BenchCluster, metric: str) -> float:
    """A figure, summed over all sidecars."""
    return sum([await asyncio.to_thread(_metric, store, metric) for store in cluster.stores.values()])


def _metric(store: StoreProcesses, metric: str) -> float:
    name = f"evenkeel_raft_{metric} "
    [value] = [
        line.removeprefix(name) for line in store.read("/metrics").decode().splitlines() if line.startswith(name)
    ]
    return float(value)

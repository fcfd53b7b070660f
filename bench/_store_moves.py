"""The cost of moving replicas: latency of concurrent writes, and bytes copied for superseded targets.

A rebalance moves one of the two replicas of every partition to the third store; the leader stays, so that a write
costs the same before and during the rebalance. The first rebalance is unthrottled; the throttle of the second makes
copying alone take three tenths of that time. A client that writes one row after another is compared with itself right
before the rebalance. Targets are superseded by a request for five replicas, and for three again during the copy.
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
    """Yield write latency during a rebalance, its duration, and wasted copies."""
    yield from asyncio.run(_rebalances())
    yield from asyncio.run(_superseded())


def _fill(client: Client, millions: int) -> None:
    for number in range(millions):
        client.table(TABLE).upsert(pa.Table.from_batches(batches_of(KEYS, 1, first=number * KEYS)))


# Writes during a rebalance


async def _rebalances() -> list[Row]:
    async with bench_cluster(partitions=PARTITIONS, replicas=2) as cluster:
        moves = _Moves(cluster)
        free = statistics.median([(await moves.pair())[2] for _ in range(WINDOWS)])
        copied = await _total(cluster, "snapshot_bytes_total") / WINDOWS
    # Every byte leaves one store and enters another, and a store has one throttle for both.
    rate = 2 * copied / len(cluster.stores) / (LONGER * free)
    flags = ("--bytes-per-second", str(int(rate)))
    async with bench_cluster(partitions=PARTITIONS, replicas=2, flags=flags) as cluster:
        moves = _Moves(cluster)
        pairs = [await moves.pair() for _ in range(WINDOWS)]
    p99 = median_row(
        "store",
        "p99 of writes during a throttled rebalance vs before; target <= 1.1",
        "ms",
        [(during, before) for before, during, _ in pairs],
    )
    taken = statistics.median(seconds for _, _, seconds in pairs)
    return [p99, Row("store", "throttled vs unthrottled rebalance; target <= 1.5", taken, "s", free, taken / free)]


class _Moves:
    """A client that writes before and while replicas move back and forth."""

    def __init__(self, cluster: BenchCluster) -> None:
        self._cluster = cluster
        self._turn = 0
        self._rows = batches_of(1, 500)

    async def pair(self) -> tuple[float, float, float]:
        """Return the p99 before and during in milliseconds, and the duration of the rebalance."""
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
        """Move every partition's follower to the other store."""
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


# Wasted copies


class _Waste(NamedTuple):
    """Megabytes copied to replicas that the last target does not have."""

    all: float
    late: float
    """Copied more than a second after the new target was written."""


async def _superseded() -> list[Row]:
    """Run one scenario in all three modes; every byte goes to a replica that the last target does not have."""
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
                Row("store", f"{case}, vs Queue; target <= 0.3", waste.all, "MB", queued.all, waste.all / queued.all),
                Row("store", f"{case}, more than 1 s after the new target; target 0", waste.late, "MB"),
            ]
        return rows


async def _superseded_in(cluster: BenchCluster, mode: Retarget) -> _Waste:
    """Request five replicas and, during the copy, three again; several times.

    Nothing else is copied, so all bytes that sidecars sent count: those of cancelled copies, and those of copies that
    were completed and then deleted.
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
    """Return the sum of a metric over all sidecars."""
    return sum([await asyncio.to_thread(_metric, store, metric) for store in cluster.stores.values()])


def _metric(store: StoreProcesses, metric: str) -> float:
    name = f"evenkeel_raft_{metric} "
    [value] = [
        line.removeprefix(name) for line in store.read("/metrics").decode().splitlines() if line.startswith(name)
    ]
    return float(value)

"""CPU cost of idle groups: awake ones, which tick and send heartbeats, and sleeping ones.

The value is the CPU share of the busiest of three sidecars.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from bench._raft_sides import cluster
from bench.report import Row
from tests.process.process_cluster import ProcessCluster

__all__ = ["idle_rows"]

WINDOWS = 5
SECONDS = 6.0
NEVER = ("--sleep-ticks", "1000000000")


def idle_rows() -> Iterator[Row]:
    """Yield rows for a thousand awake groups and ten thousand sleeping ones."""
    yield asyncio.run(_share("1,000 idle groups awake", partitions=1000, awake=True, target=8.0))
    yield asyncio.run(_share("10,000 groups asleep", partitions=10_000, awake=False, target=10.0))


async def _share(what: str, *, partitions: int, awake: bool, target: float) -> Row:
    async with cluster(partitions=partitions, flags=NEVER if awake else ()) as running:
        await _until_led(running)
        await _until_awake(running, partitions if awake else 0)
        share = statistics.median([await _busiest(running) for _ in range(WINDOWS)])
    return Row("raft", f"{what}: CPU per sidecar vs target; target <= 1", share, "%", target, share / target)


async def _until_led(running: ProcessCluster) -> None:
    async def led() -> bool:
        return (await _statuses(running, "leading")) == running.partitions

    await running.until(led, within=300)


async def _until_awake(running: ProcessCluster, each: int) -> None:
    async def as_wanted() -> bool:
        return await _statuses(running, "awake") == each * len(running.stores)

    await running.until(as_wanted, within=300)


async def _statuses(running: ProcessCluster, field: str) -> int:
    """Return the sum of a status field over all sidecars."""
    found = [await store.status() or {} for store in running.stores.values()]
    if field == "leading":
        return sum(replica["role"] == "leader" for status in found for replica in status.get("replicas", []))
    return sum(status.get(field, 0) for status in found)


async def _busiest(running: ProcessCluster) -> float:
    """Return the CPU percentage of the busiest sidecar."""
    pids = [store.sidecar.pid for store in running.stores.values() if store.sidecar is not None]
    before, began = [_cpu_seconds(pid) for pid in pids], time.perf_counter()
    await asyncio.sleep(SECONDS)
    taken = time.perf_counter() - began
    return max(100 * (_cpu_seconds(pid) - was) / taken for pid, was in zip(pids, before, strict=True))


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of the process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

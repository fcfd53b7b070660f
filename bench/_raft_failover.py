"""Time without a leader after the processes of the leader's store were killed.

Measured from the signal to the first write that the next leader acknowledges, for a client that tries the other stores
in turn. The reference is the election timeout: a follower campaigns after one to two timeouts without a message.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import statistics
import time
from collections.abc import Iterator

from bench._raft_sides import cluster, ours
from bench.report import Row
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_reference.reference_entries import Upsert
from evenkeel_reference.reference_server import Written
from tests.process.process_cluster import ProcessCluster

__all__ = ["failover_rows"]

KILLS = 7
WRITES_BEFORE = 50
TRY_SECONDS = 0.005
ENTRY = Upsert("", 0, b"key", bytes(100))


def failover_rows() -> Iterator[Row]:
    """Yield the median and the maximum of several failovers."""
    yield from asyncio.run(_failovers())


async def _failovers() -> list[Row]:
    timeout = HostSettings().election_seconds
    async with cluster() as running:
        taken = [await _failover(running) for _ in range(KILLS)]
    median, worst = statistics.median(taken), max(taken)
    what = "failover after SIGKILL, in election timeouts"
    return [
        Row("raft", f"{what}: median of {KILLS}; target <= 2", median, "s", timeout, median / timeout),
        Row("raft", f"{what}: maximum of {KILLS}", worst, "s", timeout, worst / timeout),
    ]


async def _failover(running: ProcessCluster) -> float:
    async with ours(running) as side:
        for _ in range(WRITES_BEFORE):
            await side.write(ENTRY)
        await side.until_applied()
        killed = running.stores[side.leader]
        killed.send(signal.SIGKILL)
        began = time.perf_counter()
        others = [client for store, client in side.clients.items() if store != side.leader]
        for client in itertools.cycle(others):
            if isinstance(await client.write(side.group, ENTRY), Written):
                break
            await asyncio.sleep(TRY_SECONDS)
        taken = time.perf_counter() - began
    await killed.end()
    await killed.start()
    async with ours(running) as side:
        await side.until_applied()
    return taken

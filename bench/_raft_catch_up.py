"""How fast a store that has nothing gets a replica, beside a plain copy of as many bytes.

From the moment the table is to have one replica more until the new one has applied what the others have: the plan, a
snapshot made by one state machine, sent, verified, made durable, and restored by the other. The plain copy is one
stream into one file, synced once. What the sidecars do of it is measured by itself in `_raft_net`; the rest is SQLite.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench._plain_copy import make_file, plain_copy
from bench._raft_sides import Ours, cluster, ours
from bench._turns import beside
from bench.report import Row
from tests.process.process_cluster import ProcessCluster

__all__ = ["catch_up_rows"]

VALUE_BYTES = 64 << 10
STATE_BYTES = 256 << 20
AT_ONCE = 16


def catch_up_rows() -> Iterator[Row]:
    """A fourth replica, from nothing."""
    yield asyncio.run(_catch_up())


async def _catch_up() -> Row:
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
        source = Path(directory, "file")
        await asyncio.to_thread(make_file, source, STATE_BYTES)
        async with cluster(stores=4) as running, ours(running) as side:
            await _fill(side)
            return await beside(
                f"a replica of {STATE_BYTES >> 20} MiB from nothing to applied, beside a plain copy",
                "MB/s",
                ours=lambda: _one_more(running, side),
                theirs=lambda: asyncio.to_thread(plain_copy, source),
            )


async def _fill(side: Ours) -> None:
    numbers = iter(range(STATE_BYTES // VALUE_BYTES))

    async def work() -> None:
        for number in numbers:
            await side.put(b"key-%d" % number, os.urandom(VALUE_BYTES))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def _one_more(running: ProcessCluster, side: Ours) -> float:
    """Megabytes a second of the fourth replica, which is then taken away again."""
    await running.until_settled()
    began = time.perf_counter()
    await running.reconcile(4)
    await side.until_applied()
    taken = time.perf_counter() - began
    await running.until_settled()
    await running.reconcile(3)
    await running.until_settled()

    async def clean() -> bool:
        return not await running.leftovers()

    await running.until(clean)
    await side.find_leader()
    return STATE_BYTES / 1e6 / taken

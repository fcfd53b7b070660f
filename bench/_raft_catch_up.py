"""Time to build a new replica on an empty store, compared with a plain copy of the same size.

Measured from the request for one more replica until the new one has applied what the others have: the plan, a snapshot
created by one state machine, sent, verified, synced, and restored by the other. The plain copy is one stream into one
file, synced once. `_raft_net` measures the sidecars' share alone; the rest is SQLite.
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
from bench._turns import compare
from bench.report import Row
from tests.process.process_cluster import ProcessCluster

__all__ = ["catch_up_rows"]

VALUE_BYTES = 64 << 10
STATE_BYTES = 256 << 20
AT_ONCE = 16


def catch_up_rows() -> Iterator[Row]:
    """Yield the row for a fourth replica."""
    yield asyncio.run(_catch_up())


async def _catch_up() -> Row:
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
        source = Path(directory, "file")
        await asyncio.to_thread(make_file, source, STATE_BYTES)
        async with cluster(stores=4) as running, ours(running) as side:
            await _fill(side)
            return await compare(
                f"a replica of {STATE_BYTES >> 20} MiB copied and applied, vs plain copy",
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
    """Return the MB/s for a fourth replica, and remove it afterwards."""
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

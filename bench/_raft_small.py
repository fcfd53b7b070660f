"""Many concurrent small writes, compared with PySyncObj, which keeps everything in memory and syncs no disk.

Our client batches writes, as clients with many small writes do; a write counts once the leader's state machine has
applied it. PySyncObj's writes are calls of a replicated method in the leader's own process, without a network hop,
sent in its largest sensible batches; they count when their callback reports that they are applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator

from bench._raft_sides import Ours, cluster, ours
from bench._turns import compare
from bench.report import Row
from evenkeel.metastore.etcd_server import die_with_parent, free_port
from evenkeel_reference.batching_client import BatchingClient
from evenkeel_reference.reference_server import Written
from tests.process.process_cluster import LOOPBACK

__all__ = ["IN_FLIGHT", "KEYS", "VALUE", "WRITES", "small_rows"]

WRITES = 100_000
IN_FLIGHT = 4096
VALUE = bytes(32)
KEYS = 1000


def small_rows() -> Iterator[Row]:
    """Yield the row for concurrent small writes."""
    yield asyncio.run(_small())


async def _small() -> Row:
    async with cluster() as running, ours(running) as side, _pysyncobj() as theirs:
        writes = BatchingClient(side.clients[side.leader], side.group, writer="bench", max_batch=IN_FLIGHT // 2)
        return await compare(
            f"{len(VALUE)}-byte writes, {IN_FLIGHT:,} concurrent, vs PySyncObj; target >= 2",
            "writes/s",
            ours=lambda: _our_writes(side, writes),
            theirs=theirs.measure,
        )


async def _our_writes(side: Ours, writes: BatchingClient) -> float:
    began, begun = time.perf_counter(), iter(range(WRITES))

    async def work() -> None:
        for number in begun:
            assert isinstance(outcome := await writes.put(b"key-%d" % (number % KEYS), VALUE), Written), outcome

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    await side.read(b"")
    taken = time.perf_counter() - began
    await side.until_applied()
    return WRITES / taken


class _PySyncObj:
    """Three processes; the leader measures itself."""

    def __init__(self) -> None:
        self._nodes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        addresses = [f"{LOOPBACK}:{free_port()}" for _ in range(3)]
        for address in addresses:
            others = [other for other in addresses if other != address]
            command = die_with_parent([sys.executable, "-m", "bench._pysyncobj_node", address, *others])
            pipe = asyncio.subprocess.PIPE
            self._nodes.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    async def stop(self) -> None:
        for node in self._nodes:
            node.kill()
            await node.wait()

    async def measure(self) -> float:
        """Return the leader's writes per second."""
        while True:
            for node in self._nodes:
                assert node.stdin is not None
                assert node.stdout is not None
                node.stdin.write(b"measure\n")
                if answer := float(await node.stdout.readline()):
                    return answer
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def _pysyncobj() -> AsyncIterator[_PySyncObj]:
    nodes = _PySyncObj()
    try:
        await nodes.start()
        yield nodes
    finally:
        await nodes.stop()

"""Commits compared with etcd: serial commits, and large entries with the same and with etcd's best concurrency.

Both sides respond when an entry is durable on a majority. Etcd has applied it by then, so a window of large entries
ends with a read, after which our leader's state machine has applied all of them too. Followers catch up before the
other side's turn. Large entries are measured once the log reuses its files, which is its steady state.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator

from bench._raft_sides import Ours, cluster, etcd_leader, etcd_name, ours
from bench._turns import compare
from bench.report import Row
from evenkeel.runtime.event_loop import retain_freed_memory

__all__ = ["commit_rows"]

SMALL = bytes(100)
LARGE_BYTES = 64 << 10
SERIAL = 500
LARGE_SECONDS = 2.0
AT_ONCE = 32
ETCD_AT_ONCE = 128
WARM_WINDOWS = 5
KEYS = 256
VALUES = 61

Put = Callable[[bytes, bytes], Awaitable[object]]


def commit_rows() -> Iterator[Row]:
    """Yield rows for serial commits and large entries."""
    retain_freed_memory()
    yield asyncio.run(_serial())
    yield asyncio.run(_large(AT_ONCE, f"{AT_ONCE} concurrent", "; target >= 2"))
    yield asyncio.run(_large(ETCD_AT_ONCE, f"{AT_ONCE} concurrent ({ETCD_AT_ONCE} for etcd)"))


async def _serial() -> Row:
    async with cluster() as running, ours(running) as side, etcd_leader() as etcd:
        return await compare(
            f"serial commit p50, three stores, vs {etcd_name()}; target <= 1",
            "ms",
            ours=lambda: _median_latency(side.put),
            theirs=lambda: _median_latency(etcd.put),
        )


async def _median_latency(put: Put) -> float:
    taken = []
    for number in range(SERIAL):
        began = time.perf_counter()
        await put(b"key-%d" % (number % KEYS), SMALL)
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


async def _large(etcd_at_once: int, concurrency: str, target: str = "") -> Row:
    async with cluster() as running, ours(running) as side, etcd_leader() as etcd:
        for _ in range(WARM_WINDOWS):
            await _our_large(side)
        return await compare(
            f"64 KiB entries, {concurrency}, vs {etcd_name()}{target}",
            "MB/s",
            ours=lambda: _our_large(side),
            theirs=lambda: _rate(etcd.put, at_once=etcd_at_once),
        )


async def _our_large(side: Ours) -> float:
    rate = await _rate(side.put, at_once=AT_ONCE, last=side.read)
    await side.until_applied()
    return rate


async def _rate(put: Put, *, at_once: int, last: Callable[[bytes], Awaitable[None]] | None = None) -> float:
    """Return the MB/s that the workers write;

    a key never gets its current value again, which could be optimized away.
    """
    values = [os.urandom(LARGE_BYTES) for _ in range(VALUES)]
    began, done = time.perf_counter(), 0

    async def work(worker: int) -> None:
        nonlocal done
        while time.perf_counter() - began < LARGE_SECONDS:
            await put(b"key-%d-%d" % (worker, done % 8), values[done % VALUES])
            done += 1

    await asyncio.gather(*(work(number) for number in range(at_once)))
    if last is not None:
        await last(b"")
    return done * LARGE_BYTES / 1e6 / (time.perf_counter() - began)

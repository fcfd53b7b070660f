"""The operator with 200 tables of 50 partitions on 1,000 nodes: how soon it does what a spec asks for, and says so.

A real API server and real etcds, nodes by kwok, modelled sidecars that switch at once; EVENKEEL_BENCH_SCALE=0.1 is a
tenth of it. Times are taken outside of the operator: from the API server's answer to a changed spec until the last of
the table's 50 `pending` keys is in etcd, and from the last switched `stable` key until the Table's status says so.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench._operator_world import NAMESPACE, World, all_of, table, until, world
from bench.report import Row
from e2e.cluster.binaries import lacking
from evenkeel.errors import InvalidInputError
from evenkeel.kube.kinds import TABLE
from evenkeel.protocol.records import Pending, Stable, decode

_SCALE: Final = float(os.environ.get("EVENKEEL_BENCH_SCALE", "1"))
TABLES: Final = max(2, round(200 * _SCALE))
STORES: Final = max(8, round(1000 * _SCALE))
PARTITIONS: Final = 50
CHANGES: Final = 100
_PATIENCE: Final = 600.0


class _Change(NamedTuple):
    keys: float
    """Seconds from the spec to the last key."""
    status: float
    """Seconds from the last switched key to the status."""


def rows() -> Iterator[Row]:
    if missing := lacking("kube-apiserver", "kubectl", "kwok"):
        raise InvalidInputError(
            f"not built yet: {', '.join(missing)} (make binaries ONLY=cluster; make binaries ONLY=kwok)"
        )
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        found = _measure(Path(folder))

        async def next_row() -> Row | None:
            return await anext(found, None)

        try:
            while (row := runner.run(next_row())) is not None:
                yield row
        finally:
            runner.run(_close(found))


async def _close(found: AsyncGenerator[Row, None]) -> None:
    await found.aclose()


def _row(what: str, value: float, unit: str) -> Row:
    return Row("operator", f"{TABLES} tables x {PARTITIONS}, {STORES:,} nodes: {what}; lower is better", value, unit)


async def _measure(folder: Path) -> AsyncGenerator[Row, None]:
    async with world(folder, stores=STORES) as made:
        began = time.monotonic()
        await all_of(made.kube.create(table(f"t{number}", partitions=PARTITIONS)) for number in range(TABLES))
        await until("all tables ready", lambda: _all_balanced(made, replicas=3))
        yield _row("from nothing to all Ready and balanced", time.monotonic() - began, "s")
        before = await made.requests()
        changes = await _changes(made)
        requests = (await made.requests() - before) / len(changes)
        for name, times in (
            ("spec to keys", [one.keys for one in changes]),
            ("keys to status", [one.status for one in changes]),
        ):
            yield _row(f"{name}, p50", 1000 * statistics.median(times), "ms")
            yield _row(f"{name}, p99", 1000 * _p99(times), "ms")
        yield _row("requests to the API server per change", requests, "requests")
        began = time.monotonic()
        await all_of(_scale(made, f"t{number}", 5) for number in range(TABLES))
        await until("all tables scaled", lambda: _all_balanced(made, replicas=5))
        yield _row("all tables changed at once, until all is told", time.monotonic() - began, "s")
        used, began = made.processor_seconds(), time.monotonic()
        await asyncio.sleep(20)
        idle = 100 * (made.processor_seconds() - used) / (time.monotonic() - began)
        yield _row("processor at rest, while stores report", idle, "% of a core")
        yield _row("memory", made.resident(), "MiB")


async def _changes(made: World) -> list[_Change]:
    """One after the other, on tables taken at random, now to four copies and now to three."""
    chance, copies, done = random.Random(7), dict.fromkeys(range(TABLES), 3), []
    for _ in range(CHANGES):
        number = chance.randrange(TABLES)
        copies[number] = 7 - copies[number]
        done.append(await _change(made, f"t{number}", copies[number]))
    return done


async def _change(made: World, name: str, replicas: int) -> _Change:
    uid = (await made.kube.get(TABLE, name, NAMESPACE) or {})["metadata"]["uid"]
    prefixes = made.keys.partition_prefixes(f"{name}.{uid}")
    watching = asyncio.Event()
    keys = asyncio.create_task(_until_arrived(made, prefixes.pending, prefixes.stable, replicas, watching=watching))
    await watching.wait()
    generation = await _scale(made, name, replicas)
    asked = time.monotonic()
    async with asyncio.timeout(_PATIENCE):
        written, switched = await keys
        told = await _until_told(made, name, replicas, generation)
    return _Change(written - asked, max(0.0, told - switched))


async def _until_arrived(
    made: World, pending: str, stable: str, replicas: int, *, watching: asyncio.Event
) -> tuple[float, float]:
    """When the last of a table's partitions was asked to change, and when the last had."""
    asked: set[str] = set()
    arrived: set[str] = set()
    written = 0.0
    snapshot = await made.metastore.range(made.keys.assignments())
    watching.set()
    async for batch in made.metastore.watch(made.keys.assignments(), after=snapshot):
        for event in batch.events:
            if event.kv is None:
                continue
            if event.key.startswith(pending) and len(decode(Pending, event.kv.value, key=event.key).last) == replicas:
                asked.add(event.key.removeprefix(pending))
                written = written or (time.monotonic() if len(asked) == PARTITIONS else 0.0)
            elif event.key.startswith(stable) and len(decode(Stable, event.kv.value, key=event.key).peers) == replicas:
                arrived.add(event.key.removeprefix(stable))
        if len(arrived) == PARTITIONS:
            return written or time.monotonic(), time.monotonic()
    raise AssertionError("a watch does not end")


async def _until_told(made: World, name: str, replicas: int, generation: int) -> float:
    while True:
        found = await made.kube.get(TABLE, name, NAMESPACE) or {}
        if _balanced(found, replicas) and found["status"]["observedGeneration"] >= generation:
            return time.monotonic()
        await asyncio.sleep(0.01)


async def _scale(made: World, name: str, replicas: int) -> int:
    patched = await made.kube.merge(TABLE, name, NAMESPACE, {"spec": {"replicas": replicas}})
    return int(patched["metadata"]["generation"])


async def _all_balanced(made: World, *, replicas: int) -> bool:
    tables = (await made.kube.list(TABLE, NAMESPACE)).items
    return len(tables) == TABLES and all(_balanced(found, replicas) for found in tables)


def _balanced(found: dict[str, Any], replicas: int) -> bool:
    status = found.get("status", {})
    conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
    return bool(status.get("replicas") == replicas and conditions.get("Balanced") == conditions.get("Ready") == "True")


def _p99(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, round(0.99 * len(times)))]

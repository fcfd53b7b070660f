"""The operator with 200 tables of 50 partitions on 1,000 nodes: how soon it carries out a spec and updates the status.

A real API server and real etcds, kwok nodes, and modelled sidecars that switch at once; EVENKEEL_BENCH_SCALE=0.1 runs a
tenth of it. Times are measured outside of the operator, for changes at a steady rate: from the API server's response
to a changed spec until the last of the table's 50 `pending` keys is in etcd (`maxConcurrent` allows sixteen partitions
at a time, so this includes waiting), and from the last switched `stable` key until the Table's status shows it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, Final

from bench._operator_changes import offer
from bench._operator_world import NAMESPACE, World, all_of, settle, table, until, world
from bench.report import Row
from e2e.cluster.binaries import lacking
from evenkeel.errors import InvalidInputError
from evenkeel.kube.object_kinds import EVENT, PARTITION_ASSIGNMENT, REBALANCE_PLAN, TABLE

_SCALE: Final = float(os.environ.get("EVENKEEL_BENCH_SCALE", "1"))
TABLES: Final = max(2, round(200 * _SCALE))
STORES: Final = max(8, round(1000 * _SCALE))
PARTITIONS: Final = 50
CHANGES: Final = 200
PER_SECOND: Final = 2.0
_ABOUT: Final = {
    "statuses of Tables and PartitionAssignments": (TABLE.plural, PARTITION_ASSIGNMENT.plural),
    "RebalancePlans": (REBALANCE_PLAN.plural,),
    "Events": (EVENT.plural,),
}


def rows() -> Iterator[Row]:
    if missing := lacking("kube-apiserver", "kubectl", "kwok"):
        raise InvalidInputError(
            f"missing binaries: {', '.join(missing)}; run make binaries ONLY=cluster and make binaries ONLY=kwok"
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
    return Row("operator", f"{TABLES} tables x {PARTITIONS}, {STORES:,} nodes: {what}", value, unit)


async def _measure(folder: Path) -> AsyncGenerator[Row, None]:
    async with world(folder, stores=STORES) as made:
        began = time.monotonic()
        await all_of(made.kube.create(table(f"t{number}", partitions=PARTITIONS)) for number in range(TABLES))
        await until("all tables ready", lambda: _all_balanced(made, replicas=3))
        yield _row("create all tables until Ready and balanced", time.monotonic() - began, "s")
        await settle(made)
        async for row in _changes(made):
            yield row
        await settle(made)
        began = time.monotonic()
        await all_of(_scale(made, f"t{number}", 5) for number in range(TABLES))
        await until("all tables scaled", lambda: _all_balanced(made, replicas=5))
        yield _row("change all tables at once, until all statuses show it", time.monotonic() - began, "s")
        await settle(made)
        used, began = made.processor_seconds(), time.monotonic()
        await asyncio.sleep(20)
        idle = 100 * (made.processor_seconds() - used) / (time.monotonic() - began)
        yield _row("CPU idle, with store reports", idle, "% of a core")
        yield _row("memory", made.resident(), "MiB")


async def _changes(made: World) -> AsyncGenerator[Row, None]:
    """Alternate between four and three replicas."""
    before, used, began = await made.requests(), made.processor_seconds(), time.monotonic()
    done = await offer(made, tables=TABLES, partitions=PARTITIONS, changes=CHANGES, per_second=PER_SECOND)
    seconds, spent = time.monotonic() - began, made.processor_seconds() - used
    await settle(made)
    yield _row(f"{CHANGES} changes, {PER_SECOND:g} per second offered", CHANGES / seconds, "changes/s")
    for name, times in (
        ("spec to keys", [one.keys for one in done]),
        ("keys to status", [one.status for one in done]),
    ):
        yield _row(f"{name}, p50", 1000 * statistics.median(times), "ms")
        yield _row(f"{name}, p99", 1000 * _p99(times), "ms")
    asked = await made.requests() - before
    yield _row("requests to the API server per change", asked.total() / CHANGES, "requests")
    for what, kinds in _ABOUT.items():
        yield _row(f"of these, {what}", sum(asked[kind] for kind in kinds) / CHANGES, "requests")
    yield _row("CPU while tables change", 100 * spent / seconds, "% of a core")


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

"""A rolling update from the previous release to this one and back, during a rebalance with writes."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from evenkeel.client.aio import AsyncClient
from evenkeel.local.local_resources import LocalResources
from evenkeel.metastore.etcd_server import die_with_parent
from evenkeel.model.resource_loading import load_yaml
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.records import Stable, decode, read_version
from evenkeel.reconcile.cluster_version import MAX_VERSION_ANNOTATION
from evenkeel.versions import FIRST, SUPPORTED
from tests.process.previous import previous_python
from tests.process.process_cluster import KEYS, Process, end
from tests.store.cluster import TableCluster

CURRENT: Final = sys.executable
PARTITIONS: Final = 6
STORES: Final = ("s1", "s2", "s3", "s4")
# Short logs, so that replicas catch up by snapshots while stores are replaced.
FLAGS: Final = ("--keep-log-bytes", "20000", "--bytes-per-second", "2000000", "--lease-seconds", "3")
# Log time that one release loses makes the other expire write tokens early.
WRITER_SECONDS: Final = 10.0
MACHINE_FLAGS: Final = ("--writer-seconds", f"{WRITER_SECONDS:g}")
RESOURCES: Final = f"""
apiVersion: evenkeel.dev/v1alpha1
kind: StoreCluster
metadata: {{name: main, annotations: {{{MAX_VERSION_ANNOTATION}: "{FIRST}"}}}}
spec: {{stores: {len(STORES)}, storage: {{size: 1Gi}}}}
---
apiVersion: evenkeel.dev/v1alpha1
kind: Table
metadata: {{name: orders}}
spec:
  storeCluster: main
  partitions: {PARTITIONS}
  replicas: 3
  changes: {{enabled: true}}
  schema:
    columns: [{{name: id, type: int64, nullable: false}}, {{name: note, type: string}}]
    primaryKey: [id]
---
apiVersion: evenkeel.dev/v1alpha1
kind: Table
metadata: {{name: lines}}
spec:
  storeCluster: main
  partitions: 1
  replicas: 3
  schema: {{columns: [{{name: line, type: string}}]}}
"""
AGAIN_SECONDS: Final = 4.0
"""When a write token is sent again: well before it may expire."""


class Rollout(TableCluster):
    """Stores and a controller, each of which runs one of two releases."""

    def __init__(self, directory: Path, python: str) -> None:
        super().__init__(directory, stores=len(STORES), partitions=PARTITIONS, flags=FLAGS, machine_flags=MACHINE_FLAGS)
        self.python = python
        """The interpreter of the next process."""
        self._controller: Process | None = None
        self._holders = itertools.count(1)
        self._wanted = 3

    async def close(self) -> None:
        await end(self._controller, signal.SIGKILL)
        await super().close()

    @property
    def resources(self) -> LocalResources:
        return LocalResources(self.metastore)

    # Replacing

    async def replace_controller(self) -> None:
        """Start another controller; the epoch fences the previous one, which exits."""
        before = self._controller
        script = Path(__file__).with_name("operator_half.py")
        command = [self.python, "-P", str(script), self.etcd.endpoint, f"operator-{next(self._holders)}"]
        with (self.directory / "operator.log").open("ab") as log:
            self._controller = await asyncio.create_subprocess_exec(*die_with_parent(command), stdout=log, stderr=log)
        if before is not None:
            await asyncio.wait_for(before.wait(), 60)

    async def retarget(self) -> None:
        """Change the number of replicas of the table."""
        self._wanted = 7 - self._wanted
        target = {"replicas": self._wanted}
        await self.resources.change(Table, "orders", lambda document: document["spec"].update(target))

    async def replace(self, name: str) -> None:
        """Replace a store by one of the current interpreter, like Kubernetes, and wait until it is ready."""
        store = self.stores[name]
        await store.end(signal.SIGTERM)
        store.python = self.python
        await store.start()
        await self.until_ready(store)
        status = await store.status()
        assert status is not None
        assert ("cluster_version" in status) == (self.python == CURRENT), (
            "the store runs another release than it should"
        )

    async def roll(self, python: str, *, operator_first: bool) -> None:
        """Replace all processes one by one, with a new target for the table before each store."""
        self.python = python
        if operator_first:
            await self.replace_controller()
        for name in STORES:
            await self.retarget()
            await self.replace(name)
        if not operator_first:
            await self.replace_controller()

    # Checks

    async def version(self) -> int:
        kv = await self.metastore.get(KEYS.version)
        return read_version(None if kv is None else kv.value, key=KEYS.version)

    async def at_rest(self) -> bool:
        """Whether all partitions have the desired number of replicas and nothing is in progress."""
        found = [kv for kv in (await self.metastore.range(KEYS.assignments())).kvs if "/orders." in kv.key]
        kinds = {kv.key: kv.key.removeprefix(KEYS.assignments()).partition("/")[0] for kv in found}
        peers = [decode(Stable, kv.value, key=kv.key).peers for kv in found if kinds[kv.key] == "stable"]
        return len(peers) == len(found) == PARTITIONS and all(len(row) == self._wanted for row in peers)

    async def describe(self) -> str:
        log = (self.directory / "operator.log").read_text(errors="replace")[-4000:]
        return f"{await super().describe()}\n== operator\n{log}"


class Writers:
    """Writes rows throughout the test; every acknowledged row must exist at the end."""

    def __init__(self, cluster: Rollout) -> None:
        self._cluster = cluster
        self._client = AsyncClient(
            [f"grpc://127.0.0.1:{store.front}" for store in cluster.stores.values()], deadline=60
        )
        self.acknowledged: dict[int, str] = {}
        self.lines: list[str] = []
        """Lines sent twice with one write token, the second time before the token could expire."""
        self.appended = False
        """Whether no more lines are appended: by log time a token may expire a minute early."""
        self._line_numbers = itertools.count(1)
        self._numbers = itertools.count(1)
        self._stopping = False
        self._task: asyncio.Future[Any] | None = None

    async def __aenter__(self) -> Writers:
        await self._client.__aenter__()
        self._task = asyncio.gather(self._append(), *(self._write() for _ in range(3)))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        assert self._task is not None
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _write(self) -> None:
        table = self._client.table("orders")
        while not self._stopping:
            rows = [{"id": number, "note": f"{number}" * 10} for number in itertools.islice(self._numbers, 20)]
            await table.upsert(rows)
            self.acknowledged |= {row["id"]: row["note"] for row in rows}  # type: ignore[misc]
            await asyncio.sleep(0.05)

    async def _append(self) -> None:
        """Append a line now and then and send it again later, so that log time has idle periods."""
        table, clock = self._client.table("lines"), asyncio.get_running_loop()
        while not self._stopping and not self.appended:
            line, began = f"line {next(self._line_numbers)}", clock.time()
            batch = pa.RecordBatch.from_pylist([{"line": line}])
            await table.put(0, [(1, batch)], op="append", writer=line)
            await self._wait(AGAIN_SECONDS)
            await table.put(0, [(1, batch)], op="append", writer=line)
            if clock.time() - began < WRITER_SECONDS and not self.appended:
                self.lines.append(line)
            await self._wait(1.5 * WRITER_SECONDS)

    async def _wait(self, seconds: float) -> None:
        for _ in range(round(20 * seconds)):
            if not self._stopping:
                await asyncio.sleep(0.05)

    async def go_on(self) -> None:
        """Wait until more writes are acknowledged."""
        assert self._task is not None
        before = len(self.acknowledged)
        async with asyncio.timeout(60):
            while len(self.acknowledged) <= before + 100 and not self._task.done():  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(0.05)
        if self._task.done():
            self._task.result()

    async def check(self) -> None:
        """Check that every acknowledged row exists once, no token was applied twice, and all replicas agree."""
        lines = list(self.lines)
        appended = Counter((await self._client.table("lines").scan()).column("line").to_pylist())
        assert lines
        assert {line: appended[line] for line in lines} == dict.fromkeys(lines, 1)
        kept = dict(self.acknowledged)
        table = self._client.table("orders")
        found: pa.Table = await table.scan(["id", "note"])
        ids = found.column("id").to_pylist()
        assert len(ids) == len(set(ids))
        rows = dict(zip(ids, found.column("note").to_pylist(), strict=True))
        lost = [number for number, note in kept.items() if rows.get(number) != note]
        assert not lost, f"{len(lost)} acknowledged rows are lost: {lost[:5]}\n{await self._cluster.describe()}"
        for verified in await table.verify():
            assert not verified.differing, f"replicas differ: {verified}"


@pytest.fixture
async def previous(tmp_path_factory: pytest.TempPathFactory) -> str:
    return await asyncio.to_thread(previous_python, tmp_path_factory.mktemp("previous"))


@pytest.fixture
async def cluster(new_directory: Callable[[], Path], previous: str) -> AsyncIterator[Rollout]:
    async with Rollout(new_directory(), previous) as cluster:
        yield cluster


@pytest.mark.timeout(900)
async def test_a_rolling_update_and_back(cluster: Rollout, previous: str) -> None:
    """Forward, back, forward and past the gate: no acknowledged row is lost, replicas agree, every rebalance ends."""
    await cluster.replace_controller()
    for resource in load_yaml(RESOURCES):
        await cluster.resources.apply(resource)
    await cluster.until(cluster.at_rest, within=180)
    async with Writers(cluster) as writers:
        await writers.go_on()
        for python, operator_first in ((CURRENT, True), (previous, False), (CURRENT, False)):
            await cluster.roll(python, operator_first=operator_first)
            await writers.go_on()
            await cluster.until(cluster.at_rest, within=180)
            await cluster.retarget()  # the new controller has to execute it
            await cluster.until(cluster.at_rest, within=180)
            await writers.check()
            assert await cluster.version() == FIRST
        writers.appended = True
        await cluster.resources.change(
            StoreCluster, "main", lambda document: document["metadata"]["annotations"].pop(MAX_VERSION_ANNOTATION)
        )
        await cluster.until(lambda: _risen(cluster))
        await cluster.roll(CURRENT, operator_first=True)
        await writers.go_on()
        await cluster.until(cluster.at_rest, within=180)
        await writers.check()


async def _risen(cluster: Rollout) -> bool:
    """Whether the cluster version is the newest, in the metastore and on every store."""
    statuses = [await store.status() for store in cluster.stores.values()]
    reported = {None if status is None else status.get("cluster_version") for status in statuses}
    return await cluster.version() == SUPPORTED.newest and reported == {SUPPORTED.newest}

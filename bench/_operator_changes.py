"""Changes tables at a steady rate, and measures when etcd's keys and the Tables' statuses show each change.

One etcd watch and one `kubectl get --watch` observe all tables, because polling each table would distort the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from bench._operator_world import NAMESPACE, World
from e2e.cluster.binaries import find
from evenkeel.kube.object_kinds import TABLE
from evenkeel.metastore.metastore_api import Event
from evenkeel.protocol.records import Pending, Stable, decode

__all__ = ["Change", "Watcher", "offer"]

_TIMEOUT: Final = 300.0
_COLUMNS: Final = (
    "{.metadata.name}",
    "{.status.observedGeneration}",
    "{.status.replicas}",
    '{.status.conditions[?(@.type=="Ready")].status}',
    '{.status.conditions[?(@.type=="Balanced")].status}',
)


class Change(NamedTuple):
    """One measured change."""

    keys: float
    """Seconds from the API server's response to the last key that requests a partition's change."""
    status: float
    """Seconds from the last switched key to the status that shows it."""


class _Waiting:
    """A change in progress."""

    def __init__(self, partitions: int, replicas: int) -> None:
        self.replicas = replicas
        self.generation = 0
        self.missing = {"pending": set(range(partitions)), "stable": set(range(partitions))}
        self.written = self.switched = self.reported = 0.0
        self.done = asyncio.Event()

    def observe_key(self, kind: str, partition: int) -> None:
        missing = self.missing[kind]
        missing.discard(partition)
        if kind == "pending" and not missing:
            self.written = self.written or time.monotonic()
        elif kind == "stable" and not missing:
            self.switched = self.switched or time.monotonic()
        self._check()

    def observe_status(self, words: list[str]) -> None:
        if self.generation and words[:2] == [str(self.generation), str(self.replicas)] and words[2:] == ["True"] * 2:
            self.reported = self.reported or time.monotonic()
            self._check()

    def _check(self) -> None:
        if self.switched and self.reported:
            self.done.set()


class Watcher:
    """Observes keys and statuses."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[str, _Waiting] = {}
        self._statuses: dict[str, list[str]] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Watcher]:
        """Watch while the context is open."""
        columns = '{" "}'.join(_COLUMNS)
        process = await asyncio.create_subprocess_exec(
            *(find("kubectl"), f"--kubeconfig={self._world.kubeconfig}", "get", "tables"),
            *("--namespace", NAMESPACE, "--watch", "--output", f'jsonpath={columns}{{"\\n"}}'),
            stdout=asyncio.subprocess.PIPE,
        )
        tasks = [asyncio.create_task(self._watch_keys()), asyncio.create_task(self._watch_statuses(process))]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            process.kill()
            await process.wait()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def change(self, name: str, *, partitions: int, replicas: int) -> Change:
        """Change a table's replica count and wait until the change is complete."""
        waiting = self._waiting[name] = _Waiting(partitions, replicas)
        patched = await self._world.kube.merge(TABLE, name, NAMESPACE, {"spec": {"replicas": replicas}})
        asked = time.monotonic()
        waiting.generation = int(patched["metadata"]["generation"])
        waiting.observe_status(self._statuses.get(name, []))
        async with asyncio.timeout(_TIMEOUT):
            await waiting.done.wait()
        del self._waiting[name]
        return Change(waiting.written - asked, max(0.0, waiting.reported - waiting.switched))

    async def _watch_keys(self) -> None:
        metastore, prefix = self._world.metastore, self._world.keys.assignments()
        async for batch in metastore.watch(prefix, after=await metastore.range(prefix)):
            for event in batch.events:
                kind, name, partition = event.key.removeprefix(prefix).split("/")
                waiting = self._waiting.get(name.rpartition(".")[0])
                if waiting is not None and kind in waiting.missing and _copies(kind, event) == waiting.replicas:
                    waiting.observe_key(kind, int(partition))

    async def _watch_statuses(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            name, *words = line.decode().split()
            self._statuses[name] = words
            if name in self._waiting:
                self._waiting[name].observe_status(words)


def _copies(kind: str, event: Event) -> int:
    if event.kv is None:
        return 0
    if kind == "pending":
        return len(decode(Pending, event.kv.value, key=event.key).last)
    return len(decode(Stable, event.kv.value, key=event.key).peers)


async def offer(world: World, *, tables: int, partitions: int, changes: int, per_second: float) -> list[Change]:
    """Start changes at a steady rate, regardless of how long each takes, on random idle tables."""
    rng, copies = random.Random(7), dict.fromkeys(range(tables), 3)
    running: dict[int, asyncio.Task[Change]] = {}
    done: list[asyncio.Task[Change]] = []
    async with Watcher(world).running() as watcher:
        began = time.monotonic()
        for at in range(changes):
            await asyncio.sleep(max(0.0, began + at / per_second - time.monotonic()))
            if len(running) == tables and not any(task.done() for task in running.values()):
                await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
            number = rng.choice([n for n in range(tables) if n not in running or running[n].done()])
            copies[number] = 7 - copies[number]
            change = watcher.change(f"t{number}", partitions=partitions, replicas=copies[number])
            running[number] = asyncio.create_task(change)
            done.append(running[number])
        return await asyncio.gather(*done)

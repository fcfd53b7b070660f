"""Two stores on an event loop in another thread, because calls of Spark block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from evenkeel.protocol.records import Leader, StoreRecord, encode
from tests.store.serving import KEYS, Store, table_record

T = TypeVar("T")
PARTITIONS = 4


class Stores:
    """Two stores that know each other; each leads every other partition of a table."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stores", daemon=True)
        self._stack = AsyncExitStack()
        self._tables = 0
        self.stores: list[Store] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result(timeout=120)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _start(self) -> None:
        for number in range(2):
            store = Store(self._directory / f"{number}", name=f"main-{number}", keeps_time=True)
            self.stores.append(await self._stack.enter_async_context(store))
        for store in self.stores:
            for other in self.stores:
                store.routes.put(KEYS.store(other.name), encode(StoreRecord(volume="v", flight=other.address)))

    @property
    def endpoints(self) -> str:
        return ",".join(store.address for store in self.stores)

    def table(self, name: str, columns: Sequence[dict[str, Any]], **spec: Any) -> str:
        """Create a table; return its name."""
        self.run(self._table(name, columns, {"partitions": PARTITIONS} | spec))
        return name

    async def _table(self, name: str, columns: Sequence[dict[str, Any]], spec: dict[str, Any]) -> None:
        self._tables += 1
        key = f"{name}.{self._tables}"
        count = spec["partitions"]
        record = table_record(columns, **spec)
        for number, store in enumerate(self.stores):
            await store.table(record, key=key, partitions=range(number, count, 2))
        for store in self.stores:
            for partition in range(count):
                leader = self.stores[partition % 2].name
                store.routes.put(KEYS.leader(key, partition), encode(Leader(leader, 1)))

    def pass_time(self, seconds: float) -> None:
        """Advance the clocks of the stores, and run their maintenance."""
        for store in self.stores:
            store.clock.advance(seconds)
        self.run(self._maintain())

    async def _maintain(self) -> None:
        for store in self.stores:
            await store.maintenance.reconcile(store.state_machine.groups.replicas())
            await store.settled()

    def drop(self, name: str) -> None:
        """Drop a table."""

        async def remove() -> None:
            for store in self.stores:
                known = store.routes.table(name)
                assert known is not None
                store.routes.remove(KEYS.table(known.key))
                for partition in range(known.schema.partitions):
                    if (group := store.state_machine.groups.find(known.key, partition)) is not None:
                        await store.sidecar.groups[group.number].destroy()

        self.run(remove())

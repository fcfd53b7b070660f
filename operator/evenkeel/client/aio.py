"""The client for asyncio: the same methods, awaited; each call runs on a thread of the client's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from evenkeel.client.client import Client
from evenkeel.client.filters import Filter
from evenkeel.client.table import Changes, TableClient
from evenkeel.client.verifying import Verified
from evenkeel.client.writes import Written

__all__ = ["AsyncClient", "AsyncTableClient"]

T = TypeVar("T")
_CALLS: Final = 64


class AsyncTableClient:
    """One table; see `TableClient` for what the methods do."""

    def __init__(self, table: TableClient, threads: ThreadPoolExecutor) -> None:
        self._table = table
        self._threads = threads

    async def upsert(self, rows: Any) -> Written:
        """Write whole rows."""
        return await self._do(partial(self._table.upsert, rows))

    async def append(self, rows: Any) -> Written:
        """Add rows to a table without primary key."""
        return await self._do(partial(self._table.append, rows))

    async def delete(self, keys: Any) -> Written:
        """Remove rows by their primary keys."""
        return await self._do(partial(self._table.delete, keys))

    async def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | list[Any] | None = None,  # noqa: A002
        **options: Any,
    ) -> pa.Table:
        """Rows."""
        return await self._do(partial(self._table.scan, columns, filter, **options))

    async def count(self, filter: Filter | list[Any] | None = None) -> int:  # noqa: A002
        """How many rows there are."""
        return await self._do(partial(self._table.count, filter))

    async def get(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows with these primary keys."""
        return await self._do(partial(self._table.get, keys, columns))

    async def changes(self, from_: Mapping[int, int] | None = None) -> Changes:
        """What changed past these log indexes."""
        return await self._do(partial(self._table.changes, from_))

    async def heal(self) -> list[Verified]:
        """See `Table.heal`."""
        return await self._do(self._table.heal)

    async def verify(self) -> list[Verified]:
        """Have the replicas of every partition compared."""
        return await self._do(self._table.verify)

    @asynccontextmanager
    async def pinned(self, *, seconds: float = 600.0) -> AsyncIterator[dict[int, str]]:
        """Keep all partitions readable as they are now."""
        pinned = self._table.pinned(seconds=seconds)
        pins = await self._do(pinned.__enter__)
        try:
            yield pins
        finally:
            await self._do(partial(pinned.__exit__, None, None, None))

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class AsyncClient:
    """See `Client`."""

    def __init__(self, endpoints: Sequence[str], **options: Any) -> None:
        self._client = Client(endpoints, **options)
        self._threads = ThreadPoolExecutor(_CALLS, thread_name_prefix="evenkeel-aio")

    def table(self, name: str) -> AsyncTableClient:
        """A table."""
        return AsyncTableClient(self._client.table(name), self._threads)

    async def tables(self) -> list[str]:
        """The names of all tables."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._client.tables)

    async def sql(self, query: str) -> pa.Table:
        """Run a query over tables."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._client.sql, query)

    async def close(self) -> None:
        """Hang up."""
        self._threads.shutdown(wait=False)
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

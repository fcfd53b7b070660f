"""The client for asyncio: the same methods as coroutines; each call runs on a thread of the client.

Cancelling a coroutine does not cancel its call. The call goes on until its own deadline, and may still write its rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from evenkeel.client.cluster_client import Client
from evenkeel.client.filters import Filter
from evenkeel.client.row_streams import RowStream
from evenkeel.client.table_client import Changes, TableClient
from evenkeel.client.table_writer import Op, WriteResult
from evenkeel.client.verification import Verified
from evenkeel.errors import UnavailableError
from evenkeel.rows.row_schema import RowSchema
from evenkeel.wire.flight import PinResult

__all__ = ["AsyncClient", "AsyncRowStream", "AsyncTableClient"]

T = TypeVar("T")
_MAX_THREADS: Final = 64


class AsyncRowStream:
    """`RowStream` for asyncio."""

    def __init__(self, stream: RowStream, threads: ThreadPoolExecutor) -> None:
        self.schema = stream.schema
        self.index = stream.index
        self._batches = iter(stream)
        self._threads = threads

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        batch = await _on_threads(self._threads, partial(next, self._batches, None))
        if batch is None:
            raise StopAsyncIteration
        return batch


class AsyncTableClient:
    """`TableClient` for asyncio."""

    def __init__(self, table: TableClient, threads: ThreadPoolExecutor) -> None:
        self.name = table.name
        self._table = table
        self._threads = threads

    def within(self, seconds: float) -> AsyncTableClient:
        """Return the same table with another timeout for each call."""
        return AsyncTableClient(self._table.within(seconds), self._threads)

    async def schema(self) -> pa.Schema:
        """Return the table's columns."""
        return await self._do(lambda: self._table.schema)

    async def partitions(self) -> int:
        """Return the number of partitions."""
        return await self._do(lambda: self._table.partitions)

    async def row_schema(self) -> RowSchema:
        """Return columns, keys and number of partitions, as stores know them."""
        return await self._do(lambda: self._table.row_schema)

    async def upsert(self, rows: Any) -> WriteResult:
        """Write whole rows."""
        return await self._do(partial(self._table.upsert, rows))

    async def append(self, rows: Any) -> WriteResult:
        """Add rows to a table without primary key."""
        return await self._do(partial(self._table.append, rows))

    async def delete(self, keys: Any) -> WriteResult:
        """Delete rows by primary key."""
        return await self._do(partial(self._table.delete, keys))

    async def put(self, partition: int, batches: Iterable[tuple[int, pa.RecordBatch]], *, op: Op, writer: str) -> int:
        """Write batches of one partition with write tokens of the caller."""
        return await self._do(partial(self._table.put, partition, batches, op=op, writer=writer))

    async def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | list[Any] | None = None,  # noqa: A002
        *,
        limit: int | None = None,
        max_age: float | None = None,
        at_least: Mapping[int, int] | None = None,
        pins: Mapping[int, str] | None = None,
    ) -> pa.Table:
        """Read rows."""
        options = {"limit": limit, "max_age": max_age, "at_least": at_least, "pins": pins}
        return await self._do(partial(self._table.scan, columns, filter, **options))  # type: ignore[arg-type]

    @asynccontextmanager
    async def stream(
        self,
        partition: int,
        columns: Sequence[str] | None = None,
        filter: Filter | list[Any] | None = None,  # noqa: A002
        *,
        limit: int | None = None,
        at_least: int | None = None,
        pin: str = "",
    ) -> AsyncIterator[AsyncRowStream]:
        """Stream the rows of one partition: `async with orders.stream(0) as rows`, then `async for`."""
        open_stream = partial(self._table.stream, partition, columns, filter, limit=limit, at_least=at_least, pin=pin)
        stream = await self._do(open_stream)
        try:
            yield AsyncRowStream(stream, self._threads)
        finally:
            stream.close()

    async def count(self, filter: Filter | list[Any] | None = None) -> int:  # noqa: A002
        """Count rows."""
        return await self._do(partial(self._table.count, filter))

    async def get(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows with these primary keys."""
        return await self._do(partial(self._table.get, keys, columns))

    async def changes(self, from_: Mapping[int, int] | None = None) -> Changes:
        """Read the changes after these log indexes."""
        return await self._do(partial(self._table.changes, from_))

    async def heal(self) -> list[Verified]:
        """Compare the replicas of every partition, and rebuild those that differ from the majority."""
        return await self._do(self._table.heal)

    async def verify(self) -> list[Verified]:
        """Compare the replicas of every partition."""
        return await self._do(self._table.verify)

    @asynccontextmanager
    async def pinned(self, *, seconds: float = 600.0) -> AsyncIterator[dict[int, str]]:
        """Keep the current rows of all partitions readable."""
        pinned = self._table.pinned(seconds=seconds)
        pins = await self._do(pinned.__enter__)
        try:
            yield pins
        finally:
            await self._do(partial(pinned.__exit__, None, None, None))

    async def pin(self, name: str, *, seconds: float, partitions: Iterable[int] | None = None) -> dict[int, PinResult]:
        """Keep the current rows of partitions readable under a name."""
        return await self._do(partial(self._table.pin, name, seconds=seconds, partitions=partitions))

    async def unpin(self, name: str) -> None:
        """Delete the pins of a name."""
        await self._do(partial(self._table.unpin, name))

    async def wait_until_readable(self, *, seconds: float = 30.0) -> None:
        """Wait until every partition has a leader that answers."""
        await self._do(partial(self._table.wait_until_readable, seconds=seconds))

    async def _do(self, work: Callable[[], T]) -> T:
        return await _on_threads(self._threads, work)


class AsyncClient:
    """`Client` for asyncio."""

    def __init__(self, endpoints: Iterable[str], **options: Any) -> None:
        self._client = Client(endpoints, **options)
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="evenkeel-aio")

    def table(self, name: str) -> AsyncTableClient:
        """Return a table by name."""
        return AsyncTableClient(self._client.table(name), self._threads)

    async def tables(self) -> list[str]:
        """Return the names of all tables."""
        return await _on_threads(self._threads, self._client.tables)

    async def sql(self, query: str) -> pa.Table:
        """Run a query over tables."""
        return await _on_threads(self._threads, partial(self._client.sql, query))

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.to_thread(self._client.close)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _on_threads(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, work)
    except asyncio.CancelledError:
        # Closing the client cancels calls that wait for a thread, although the caller was not cancelled.
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
    except RuntimeError as error:
        if "after shutdown" not in str(error):
            raise
    raise UnavailableError("the client is closed; create a new one")

"""The client for asyncio: the same methods, awaited; each call runs on a thread of the client's.

Who stops waiting for a call, by a timeout say, has not stopped the call: it goes on until its own deadline, and what it
was to write may be written.
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
from evenkeel.client.verification import Verified
from evenkeel.client.writes import Op, Written
from evenkeel.errors import UnavailableError
from evenkeel.rows.row_schema import RowSchema
from evenkeel.wire.flight import PinResult

__all__ = ["AsyncClient", "AsyncRowStream", "AsyncTableClient"]

T = TypeVar("T")
_CALLS: Final = 64


class AsyncRowStream:
    """See `RowStream`."""

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
    """One table; see `TableClient` for what the methods do."""

    def __init__(self, table: TableClient, threads: ThreadPoolExecutor) -> None:
        self.name = table.name
        self._table = table
        self._threads = threads

    def within(self, seconds: float) -> AsyncTableClient:
        """The same table, whose calls have so many seconds each."""
        return AsyncTableClient(self._table.within(seconds), self._threads)

    async def schema(self) -> pa.Schema:
        """The table's columns."""
        return await self._do(lambda: self._table.schema)

    async def partitions(self) -> int:
        """How many partitions it has."""
        return await self._do(lambda: self._table.partitions)

    async def row_schema(self) -> RowSchema:
        """Its columns, keys and partitions, as stores know them."""
        return await self._do(lambda: self._table.row_schema)

    async def upsert(self, rows: Any) -> Written:
        """Write whole rows."""
        return await self._do(partial(self._table.upsert, rows))

    async def append(self, rows: Any) -> Written:
        """Add rows to a table without primary key."""
        return await self._do(partial(self._table.append, rows))

    async def delete(self, keys: Any) -> Written:
        """Remove rows by their primary keys."""
        return await self._do(partial(self._table.delete, keys))

    async def put(self, partition: int, batches: Iterable[tuple[int, pa.RecordBatch]], *, op: Op, writer: str) -> int:
        """Write batches of one partition under tokens of one's own."""
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
        """Rows."""
        how = {"limit": limit, "max_age": max_age, "at_least": at_least, "pins": pins}
        return await self._do(partial(self._table.scan, columns, filter, **how))  # type: ignore[arg-type]

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
        """The rows of one partition as they come: `async with orders.stream(0) as rows`, then `async for`."""
        ask = partial(self._table.stream, partition, columns, filter, limit=limit, at_least=at_least, pin=pin)
        stream = await self._do(ask)
        try:
            yield AsyncRowStream(stream, self._threads)
        finally:
            stream.close()

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
        """See `TableClient.heal`."""
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

    async def pin(self, name: str, *, seconds: float, partitions: Iterable[int] | None = None) -> dict[int, PinResult]:
        """Keep partitions readable as they are now under a name."""
        return await self._do(partial(self._table.pin, name, seconds=seconds, partitions=partitions))

    async def unpin(self, name: str) -> None:
        """Let the pins of a name go."""
        await self._do(partial(self._table.unpin, name))

    async def wait_until_readable(self, *, seconds: float = 30.0) -> None:
        """Wait until every partition has a leader that answers."""
        await self._do(partial(self._table.wait_until_readable, seconds=seconds))

    async def _do(self, work: Callable[[], T]) -> T:
        return await _on_threads(self._threads, work)


class AsyncClient:
    """See `Client`."""

    def __init__(self, endpoints: Iterable[str], **options: Any) -> None:
        self._client = Client(endpoints, **options)
        self._threads = ThreadPoolExecutor(_CALLS, thread_name_prefix="evenkeel-aio")

    def table(self, name: str) -> AsyncTableClient:
        """A table."""
        return AsyncTableClient(self._client.table(name), self._threads)

    async def tables(self) -> list[str]:
        """The names of all tables."""
        return await _on_threads(self._threads, self._client.tables)

    async def sql(self, query: str) -> pa.Table:
        """Run a query over tables."""
        return await _on_threads(self._threads, partial(self._client.sql, query))

    async def close(self) -> None:
        """Hang up."""
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
        # Who closes the client cancels what waits for a thread; whoever waits for that was not cancelled.
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
    except RuntimeError as error:
        if "after shutdown" not in str(error):
            raise
    raise UnavailableError("the client is closed: make a new one")

"""The entry point of the client: connections to stores, tables by name, SQL over several tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from evenkeel.client.retries import Retrier
from evenkeel.client.route_cache import RouteCache
from evenkeel.client.sql_queries import run_query
from evenkeel.client.store_connections import Connections
from evenkeel.client.table_client import TableClient
from evenkeel.errors import InvalidInputError

__all__ = ["Client"]

_THREADS: Final = 16


class Client:
    """A client of one StoreCluster; it needs the address of at least one store."""

    def __init__(
        self,
        endpoints: Iterable[str],
        *,
        token: str = "",
        ca: Path | str | bytes | None = None,
        server_name: str = "",
        deadline: float = 30.0,
        via: Callable[[str], str] = lambda address: address,
    ) -> None:
        """`endpoints` are Flight addresses such as grpc://127.0.0.1:7500; `deadline` is in seconds, for each call.

        `token` is the access token. `via` maps an address that a store reports to the address to connect to.
        """
        addresses = () if isinstance(endpoints, str) or endpoints is None else tuple(endpoints)
        if not addresses:
            raise InvalidInputError(f"endpoints: got {endpoints!r}; allowed: a list like ['grpc://127.0.0.1:7500']")
        for endpoint in addresses:
            if not str(endpoint).startswith(("grpc://", "grpc+tcp://", "grpc+tls://")):
                raise InvalidInputError(
                    f"endpoints: got {endpoint!r}; allowed: grpc://HOST:PORT or grpc+tls://HOST:PORT"
                )
        self._connections = Connections(token=token, ca=ca, server_name=server_name, via=via)
        self._retrier = Retrier(RouteCache(addresses, self._connections), self._connections, deadline=deadline)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="evenkeel")
        self._tables: dict[str, TableClient] = {}
        self._lock = threading.Lock()

    def table(self, name: str) -> TableClient:
        """Return a table by name; whether it exists is checked by its first call."""
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"table: got {name!r}; allowed: its name, like 'orders'")
        with self._lock:
            if name not in self._tables:
                self._tables[name] = TableClient(name, self._retrier, self._pool)
            return self._tables[name]

    def tables(self) -> list[str]:
        """Return the names of all tables."""
        return self._retrier.begin().table_names()

    def sql(self, query: str) -> pa.Table:
        """Run a query over tables with DuckDB in this process; each table is read at one point in time.

        All rows of the tables are transferred: use `scan` and `count` to filter and aggregate large tables.
        """
        self._retrier.check_open()
        try:
            return run_query(
                query,
                tables=self.tables,
                schema=lambda name: self.table(name).schema,
                rows=self._consistent_rows,
                pool=self._pool,
            )
        except RuntimeError:
            # Closing the client shuts down its threads.
            self._retrier.check_open()
            raise

    def _consistent_rows(self, name: str) -> pa.Table:
        table = self.table(name)
        if table.partitions == 1:
            return table.scan()
        with table.pinned() as pins:
            return table.scan(pins=pins)

    def close(self) -> None:
        """Close all connections; calls in other threads fail soon."""
        self._retrier.close()
        self._pool.shutdown(cancel_futures=True)
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

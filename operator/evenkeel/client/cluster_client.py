"""Where a program begins: connections to stores, tables by name, SQL over several of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from evenkeel.client.retries import Attempts
from evenkeel.client.route_cache import RouteCache
from evenkeel.client.sql_queries import run_query
from evenkeel.client.store_connections import Connections
from evenkeel.client.table_client import TableClient
from evenkeel.errors import InvalidInputError

__all__ = ["Client"]

_THREADS: Final = 16


class Client:
    """Talks to the stores of one StoreCluster; any of them will do to begin with."""

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

        `via` tells how an address that stores name is reached from here, where that is another.
        """
        named = () if isinstance(endpoints, str) or endpoints is None else tuple(endpoints)
        if not named:
            raise InvalidInputError(f"endpoints: got {endpoints!r}; allowed: a list like ['grpc://127.0.0.1:7500']")
        for endpoint in named:
            if not str(endpoint).startswith(("grpc://", "grpc+tcp://", "grpc+tls://")):
                raise InvalidInputError(
                    f"endpoints: got {endpoint!r}; allowed: grpc://HOST:PORT or grpc+tls://HOST:PORT"
                )
        self._connections = Connections(token=token, ca=ca, server_name=server_name, via=via)
        self._attempts = Attempts(RouteCache(named, self._connections), self._connections, deadline=deadline)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="evenkeel")
        self._tables: dict[str, TableClient] = {}
        self._lock = threading.Lock()

    def table(self, name: str) -> TableClient:
        """A table; that it is there shows with the first call."""
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"table: got {name!r}; allowed: its name, like 'orders'")
        with self._lock:
            if name not in self._tables:
                self._tables[name] = TableClient(name, self._attempts, self._pool)
            return self._tables[name]

    def tables(self) -> list[str]:
        """The names of all tables."""
        return self._attempts.begin().names()

    def sql(self, query: str) -> pa.Table:
        """Run a query over tables, in DuckDB, here; each table's rows are of one moment.

        Rows travel to this process: filter and aggregate with `scan` and `count` where tables are large.
        """
        self._attempts.check_open()
        try:
            return run_query(
                query,
                tables=self.tables,
                schema=lambda name: self.table(name).schema,
                rows=self._rows_of_one_moment,
                pool=self._pool,
            )
        except RuntimeError:
            # Threads are taken away by whoever closes the client.
            self._attempts.check_open()
            raise

    def _rows_of_one_moment(self, name: str) -> pa.Table:
        table = self.table(name)
        if table.partitions == 1:
            return table.scan()
        with table.pinned() as pins:
            return table.scan(pins=pins)

    def close(self) -> None:
        """Hang up; calls under way in other threads end soon, with an error."""
        self._attempts.close()
        self._pool.shutdown(cancel_futures=True)
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Send requests over a shared connection, with safe retries.

Reads are retried until their timeout, also at other endpoints. A write is retried only if it certainly had no effect:
it was never sent, or etcd reports that it dropped it. Otherwise the caller gets an error that its outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aetcd import rpc

from evenkeel.errors import MetastoreError, UnreachableError
from evenkeel.metastore._etcd_connection import Connection, Metadata, Opener
from evenkeel.metastore._etcd_errors import certainly_not_applied, is_stale_token, is_transient, reason, translate
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.runtime.backoff import Backoff

__all__ = ["Link", "Method"]

Method = Callable[[Connection], Any]
"""Returns the RPC to call on a connection."""


class Link:
    """One connection for all requests except watches."""

    def __init__(self, settings: EtcdSettings, opener: Opener) -> None:
        self._settings = settings
        self._opener = opener
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(self, method: Method, request: Any, *, repeatable: bool) -> Any:
        """Send a request; retry until the timeout if it is repeatable or certainly had no effect."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._settings.request_timeout
        backoff = Backoff()
        while True:
            connection = await self.connection(deadline)
            metadata = self._opener.metadata
            timeout = deadline - now()
            if timeout <= 0:
                raise self._opener.unreachable()
            if repeatable:
                timeout /= 2  # leaves time for a second endpoint
            try:
                return await self._send(method(connection)(request, timeout=timeout, metadata=metadata))
            except rpc.AioRpcError as error:
                self._drop(connection, error, metadata)
                if not repeatable and not certainly_not_applied(error):
                    raise self._unknown_outcome() from error
            await backoff.wait()

    async def connection(self, deadline: float) -> Connection:
        """Return the present connection, or a new one if it is lost."""
        if self._connection is not None and self._connection.alive():
            return self._connection
        try:
            async with asyncio.timeout_at(deadline), self._opening:
                return await self._connect()
        except TimeoutError:
            raise self._opener.unreachable() from None

    def drop(self) -> None:
        """Make the next request open another connection."""
        if self._connection is not None:
            self._retire(self._connection)

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _connect(self) -> Connection:
        if self._connection is not None and self._connection.alive():
            return self._connection
        if self._connection is not None:
            self._retire(self._connection)
        self._check_open()
        connection = await self._opener.open()
        if self._closed:
            await connection.close()
        self._check_open()
        self._connection = connection
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise MetastoreError("the metastore client is closed; create a new one")

    async def _send(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise MetastoreError("the metastore client was closed during the request") from None
            raise

    def _drop(self, connection: Connection, error: Any, metadata: Metadata) -> None:
        """Stop using a connection after a transient failure; raise if the failure is permanent."""
        if is_stale_token(error):
            self._opener.forget_token(connection.endpoint, refused=metadata)
        elif is_transient(error):
            self._opener.failed(connection.endpoint, reason(error))
        else:
            raise translate(error) from error
        if connection is self._connection:
            self._retire(connection)

    def _retire(self, connection: Connection) -> None:
        """Close a connection after its requests in flight have ended; each has its own deadline."""
        self._connection = None
        task = asyncio.create_task(connection.close(grace=self._settings.request_timeout + 1))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _unknown_outcome(self) -> UnreachableError:
        return self._opener.unreachable(
            "the transaction was sent and its outcome is unknown; read before writing again"
        )

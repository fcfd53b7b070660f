"""HTTP connections to the API server whose closing can be awaited.

When a session is closed, aiohttp waits for the connections of its pool but not for those it has already released, such
as that of a watch. Their TLS shutdown waits for the server, and the event loop may end before it is done.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

__all__ = ["Connector", "Rest", "connected"]

_CLOSING_SECONDS: Final = 5.0
"""Much longer than a busy event loop needs to close connections."""


class Connector(aiohttp.TCPConnector):
    """A connector that tracks its connections until they are closed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._made: weakref.WeakKeyDictionary[ResponseHandler, weakref.ref[asyncio.Transport]] = (
            weakref.WeakKeyDictionary()
        )
        """The transport of each connection, which the connection forgets when it starts to close."""

    async def _create_connection(self, *arguments: Any, **options: Any) -> ResponseHandler:
        made = await super()._create_connection(*arguments, **options)
        assert made.transport is not None
        self._made[made] = weakref.ref(made.transport)
        return made

    async def abort_all(self) -> None:
        """Abort all connections, without a TLS shutdown, and wait until they are closed."""
        made = dict(self._made)
        for transport in made.values():
            if (open_ := transport()) is not None:
                open_.abort()
        closing = [closed for connection in made if (closed := connection.closed) is not None]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSING_SECONDS)


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session; on exit, wait until its connections are closed."""
    connector = Connector(**options)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            yield session
    finally:
        await connector.abort_all()


class Rest(RESTClientObject):
    """The part of the official client that holds connections."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._connector: Connector | None = None

    def _create_connector(self) -> Connector:
        self._connector = Connector(limit=self.maxsize, ssl=self.ssl_context)
        return self._connector

    async def close(self) -> None:
        """Close all connections and wait until they are closed."""
        await super().close()
        if self._connector is not None:
            await self._connector.abort_all()

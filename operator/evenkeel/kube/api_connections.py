"""Connections to the API server that are waited for until they are closed.

When a session is closed aiohttp waits for the connections of its pool, but not for those that were given up before,
such as a watch's: their TLS waits for the server to say goodbye, and the event loop may end before that.
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
"""More than an event loop needs, however much it has to do."""


class Connector(aiohttp.TCPConnector):
    """Knows its connections until they are closed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._made: weakref.WeakKeyDictionary[ResponseHandler, weakref.ref[asyncio.Transport]] = (
            weakref.WeakKeyDictionary()
        )
        """With their transports, which they themselves forget when they begin to close."""

    async def _create_connection(self, *asked: Any, **options: Any) -> ResponseHandler:
        made = await super()._create_connection(*asked, **options)
        assert made.transport is not None
        self._made[made] = weakref.ref(made.transport)
        return made

    async def hang_up(self) -> None:
        """Wait until all connections are closed; nobody waits for the server."""
        made = dict(self._made)
        for transport in made.values():
            if (open_ := transport()) is not None:
                open_.abort()
        closing = [closed for connection in made if (closed := connection.closed) is not None]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSING_SECONDS)


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """A session of its own."""
    connector = Connector(**options)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            yield session
    finally:
        await connector.hang_up()


class Rest(RESTClientObject):
    """The part of the official client that holds connections."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._connector: Connector | None = None

    def _create_connector(self) -> Connector:
        self._connector = Connector(limit=self.maxsize, ssl=self.ssl_context)
        return self._connector

    async def close(self) -> None:
        """Hang up, and wait until that is done."""
        await super().close()
        if self._connector is not None:
            await self._connector.hang_up()

"""A small HTTP server for probes, metrics and status: one GET per connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from evenkeel.errors import InvalidInputError
from evenkeel.runtime.flags import Endpoint

__all__ = ["Handler", "HttpServer", "Response"]

log = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0
_MAX_HEADER_BYTES: Final = 8192
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Response(NamedTuple):
    """The response of a handler."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Handler = Callable[[], Response | Awaitable[Response]]


class HttpServer:
    """Serves one handler per path."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, at: Endpoint) -> int:
        """Listen, and return the port."""
        try:
            self._server = await asyncio.start_server(self._accept, at.host, at.port, limit=_MAX_HEADER_BYTES)
        except OSError as error:
            raise InvalidInputError(f"cannot serve HTTP on {at}: {error.strerror}; choose another --http") from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(_TIMEOUT):
                    response = await self._respond(reader)
                    writer.write(_head(response) + response.body)
                    await writer.drain()
        finally:
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader) -> Response:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.LimitOverrunError, ValueError):
            return Response(400, b"the request is too long\n")
        method, _, rest = head.partition(b"\r\n")[0].decode(errors="replace").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return Response(405, b"only GET and HEAD are supported\n")
        handler = self._handlers.get(path)
        if handler is None:
            return Response(404, f"not found; available paths: {', '.join(sorted(self._handlers))}\n".encode())
        try:
            result = handler()
            response = result if isinstance(result, Response) else await result
        except Exception:
            log.exception("the handler of %s failed", path)
            return Response(500, b"internal error; see the log\n")
        return response._replace(body=b"") if method == "HEAD" else response


def _head(response: Response) -> bytes:
    lines = (
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode()

"""A small HTTP server for probes, metrics and tools: GET, one answer, close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from evenkeel.errors import InvalidInputError
from evenkeel.runtime.flags import Endpoint

__all__ = ["Answer", "HttpServer", "Page"]

log = logging.getLogger(__name__)

_PATIENCE: Final = 5.0
_MOST_BYTES: Final = 8192
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Answer(NamedTuple):
    """What a page says."""

    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"


Page = Callable[[], Answer | Awaitable[Answer]]


class HttpServer:
    """Serves a page per path."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._talking: set[asyncio.Task[None]] = set()

    async def start(self, at: Endpoint) -> int:
        """Listen; returns the port."""
        try:
            self._server = await asyncio.start_server(self._accept, at.host, at.port, limit=_MOST_BYTES)
        except OSError as error:
            raise InvalidInputError(f"cannot serve HTTP on {at}: {error.strerror}; choose another --http") from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Hang up on everybody."""
        if self._server is not None:
            self._server.close()
        for task in list(self._talking):
            task.cancel()
        await asyncio.gather(*self._talking, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._talking.add(task)
        task.add_done_callback(self._talking.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(_PATIENCE):
                    answer = await self._answer(reader)
                    writer.write(_head(answer) + answer.body)
                    await writer.drain()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.LimitOverrunError, ValueError):
            return Answer(400, b"the request is too long\n")
        method, _, rest = head.partition(b"\r\n")[0].decode(errors="replace").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return Answer(405, b"only GET is answered here\n")
        page = self._pages.get(path)
        if page is None:
            return Answer(404, f"there are {', '.join(sorted(self._pages))}\n".encode())
        try:
            found = page()
            answer = found if isinstance(found, Answer) else await found
        except Exception:
            log.exception("%s cannot be answered", path)
            return Answer(500, b"this is a bug; the log says more\n")
        return answer._replace(body=b"") if method == "HEAD" else answer


def _head(answer: Answer) -> bytes:
    lines = (
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode()

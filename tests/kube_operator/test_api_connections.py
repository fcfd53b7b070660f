"""Connections to the API server end with their session."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest_asyncio

from evenkeel.kube.api_connections import Connector, connected
from evenkeel_operator.identity.authority import Authority


class Server:
    """Sends the start of a long response over TLS, and nothing more, not even a close."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(b"seed", "tests")
        issued = authority.issue("server", ["localhost"], now=datetime.now(UTC))
        for name, text in (("cert", issued.certificate), ("key", issued.key)):
            (folder / name).write_text(text)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "cert", folder / "key")
        self.trusted = ssl.create_default_context(cadata=authority.certificate)
        self.url = ""
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._answer, "localhost", ssl=self._context)
        self.url = f"https://localhost:{server.sockets[0].getsockname()[1]}/"
        return server

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome")
        self._writers.append(writer)

    def drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    running = await made.start()
    yield made
    made.drop()
    running.close()
    await running.wait_closed()


async def test_an_abandoned_response_is_closed_with_the_session(server: Server) -> None:
    """The connection of an abandoned watch ends with the session, whatever the server does."""
    async with connected(ssl=server.trusted) as session:
        answer = await session.get(server.url)
        assert await answer.content.read(4) == b"some"
        assert isinstance(session.connector, Connector)
        [connection] = list(session.connector._made)
        answer.close()
        closed = connection.closed
        assert closed is not None
        assert not closed.done()
    assert closed.done()

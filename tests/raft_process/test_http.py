"""The HTTP server: its responses, and its robustness against bad clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.runtime import http_server
from evenkeel.runtime.flags import Endpoint
from evenkeel.runtime.http_server import HttpServer, Response

Ask = Callable[[bytes], Awaitable[bytes]]
GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


async def later() -> Response:
    await asyncio.sleep(0)
    return Response(200, b"{}", "application/json")


def broken() -> Response:
    raise KeyError("bug")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = HttpServer(
        {
            "/now": lambda: Response(200, b"now\n"),
            "/later": later,
            "/no": lambda: Response(503, b"no\n"),
            "/broken": broken,
        }
    )
    yield await server.start(Endpoint("127.0.0.1", 0))
    await asyncio.wait_for(server.close(), 5)


@pytest.fixture
def ask(port: int) -> Ask:
    async def ask(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        try:
            async with asyncio.timeout(5):
                return await reader.read()
        finally:
            writer.close()

    return ask


TEXT = b"text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "status", "kind", "body"),
    [
        (b"/now", b"200 OK", TEXT, b"now\n"),
        (b"/now?x=1", b"200 OK", TEXT, b"now\n"),
        (b"/later", b"200 OK", b"application/json", b"{}"),
        (b"/no", b"503 Service Unavailable", TEXT, b"no\n"),
        (b"/", b"404 Not Found", TEXT, b"not found; available paths: /broken, /later, /no, /now\n"),
    ],
)
async def test_pages(ask: Ask, path: bytes, status: bytes, kind: bytes, body: bytes) -> None:
    """Pages are sync or async; a response for an unknown path lists the available ones."""
    head, _, found = (await ask(GET % path)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert b"Content-Type: " + kind in head
    assert b"Content-Length: %d" % len(body) in head
    assert found == body


async def test_a_failing_page_returns_an_error(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the traceback; other pages keep working."""
    assert b"500 Internal Server Error" in await ask(GET % b"/broken")
    assert "KeyError" in caplog.text
    assert b"200 OK" in await ask(GET % b"/now")


async def test_heads_have_no_body(ask: Ask) -> None:
    """A response to HEAD has no body."""
    answer = await ask(b"HEAD /no HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /now HTTP/1.1\r\n\r\n", b"405"),
        (b"\r\n\r\n", b"405"),
        (b"GET\r\n\r\n", b"404"),
        (b"\xff\xfe \xff\r\n\r\n", b"405"),
        (b"GET /" + b"x" * 20_000 + b"\r\n\r\n", b"400"),
    ],
)
async def test_invalid_requests_get_an_error(ask: Ask, request_: bytes, status: bytes) -> None:
    """Invalid requests get an error response."""
    assert (await ask(request_)).startswith(b"HTTP/1.1 " + status)
    assert b"200 OK" in await ask(GET % b"/now")


async def test_incomplete_requests_time_out(port: int, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete request ends by timeout or disconnect, and blocks no other request."""
    monkeypatch.setattr(http_server, "_TIMEOUT", 0.05)
    slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
    for _, writer in slow:
        writer.write(b"GET /now HT")
    assert b"200 OK" in await ask(GET % b"/now")
    for reader, writer in slow:
        # The client sees a reset if the server closes the connection with unread data.
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_port_in_use_is_named(port: int) -> None:
    """The error names the flag to change."""
    with pytest.raises(InvalidInputError, match=rf"127.0.0.1:{port}.*choose another --http"):
        await HttpServer({}).start(Endpoint("127.0.0.1", port))

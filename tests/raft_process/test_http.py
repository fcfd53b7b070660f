"""The small HTTP server: what it answers, and what cannot hold it up."""

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


@pytest.mark.parametrize(
    ("path", "status", "kind", "body"),
    [
        (b"/now", b"200 OK", b"text/plain; charset=utf-8", b"now\n"),
        (b"/now?x=1", b"200 OK", b"text/plain; charset=utf-8", b"now\n"),
        (b"/later", b"200 OK", b"application/json", b"{}"),
        (b"/no", b"503 Service Unavailable", b"text/plain; charset=utf-8", b"no\n"),
        (b"/", b"404 Not Found", b"text/plain; charset=utf-8", b"not found; available paths: /broken, /later, /no, /now\n"),
    ],
)
async def test_pages(ask: Ask, path: bytes, status: bytes, kind: bytes, body: bytes) -> None:
    """A page answers by itself or by waiting; who asks for another is told which there are."""
    head, _, found = (await ask(GET % path)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert b"Content-Type: " + kind in head
    assert b"Content-Length: %d" % len(body) in head
    assert found == body


async def test_a_page_with_a_bug_says_so(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the rest; other pages are answered as ever."""
    assert b"500 Internal Server Error" in await ask(GET % b"/broken")
    assert "KeyError" in caplog.text
    assert b"200 OK" in await ask(GET % b"/now")


async def test_heads_have_no_body(ask: Ask) -> None:
    """For those who only want to know whether."""
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
async def test_nonsense_is_answered(ask: Ask, request_: bytes, status: bytes) -> None:
    """And harms nobody."""
    assert (await ask(request_)).startswith(b"HTTP/1.1 " + status)
    assert b"200 OK" in await ask(GET % b"/now")


async def test_who_says_half_a_request_is_hung_up_on(port: int, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, or when it hangs up itself; nobody else waits for that."""
    monkeypatch.setattr(http_server, "_TIMEOUT", 0.05)
    slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
    for _, writer in slow:
        writer.write(b"GET /now HT")
    assert b"200 OK" in await ask(GET % b"/now")
    for reader, writer in slow:
        # A server that hangs up before it has read what came is heard as a reset.
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_port_in_use_is_named(port: int) -> None:
    """With the flag to change."""
    with pytest.raises(InvalidInputError, match=rf"127.0.0.1:{port}.*choose another --http"):
        await HttpServer({}).start(Endpoint("127.0.0.1", port))

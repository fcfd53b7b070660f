"""Certificates and access tokens derived from a seed."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from evenkeel_operator.identity.authority import Authority, Issued, period, token

SEED = b"s" * 32
NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOSTS = ("*.main.shop.svc", "localhost", "127.0.0.1")


def test_issuing_is_deterministic() -> None:
    """Another replica, or the same one later in the period, issues the same bytes."""
    one = Authority(SEED, "shop/main").issue("store", HOSTS, now=NOW)
    two = Authority(SEED, "shop/main").issue("store", HOSTS, now=NOW + timedelta(hours=1))
    assert one == two
    assert Authority(SEED, "shop/main").certificate == Authority(SEED, "shop/main").certificate


def test_keys_are_not_shared() -> None:
    """Other clusters, subjects, seeds and periods have other keys."""
    base = Authority(SEED, "shop/main").issue("store", HOSTS, now=NOW)
    others = [
        Authority(SEED, "shop/other").issue("store", HOSTS, now=NOW),
        Authority(b"t" * 32, "shop/main").issue("store", HOSTS, now=NOW),
        Authority(SEED, "shop/main").issue("client", HOSTS, now=NOW),
        Authority(SEED, "shop/main").issue("store", HOSTS, now=NOW + timedelta(days=180)),
    ]
    assert len({base.key, *(other.key for other in others)}) == 5
    assert token(SEED, "a") != token(SEED, "b")
    assert token(SEED, "a") == token(SEED, "a")


@pytest.mark.parametrize("days", range(0, 400, 37))
def test_certificates_are_valid_for_half_a_year(days: int) -> None:
    """A certificate issued late in a period is valid as long, and one for skewed clocks a little earlier."""
    now = NOW + timedelta(days=days)
    issued = x509.load_pem_x509_certificate(Authority(SEED, "a").issue("b", HOSTS, now=now).certificate.encode())
    assert issued.not_valid_before_utc <= now - timedelta(days=1)
    assert issued.not_valid_after_utc >= now + timedelta(days=180)


def test_periods_follow_each_other() -> None:
    """The number grows by one every half year."""
    assert [period(NOW + timedelta(days=180 * i)) - period(NOW) for i in range(4)] == [0, 1, 2, 3]


def context(kind: int, authority: Authority, issued: Issued, folder: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(kind)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(cadata=authority.certificate)
    made.verify_mode = ssl.CERT_REQUIRED
    folder.mkdir(exist_ok=True)
    (folder / "crt").write_text(issued.certificate)
    (folder / "key").write_text(issued.key)
    made.load_cert_chain(folder / "crt", folder / "key")
    return made


async def greet(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bytes:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"hello")
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server) as listening:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
        try:
            return await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def test_both_ends_accept_each_other(tmp_path: Path) -> None:
    """OpenSSL in strict mode accepts certificates of one authority at both ends, by any of their names."""
    authority = Authority(SEED, "shop/main")
    now = datetime.now(UTC)
    store, client = authority.issue("store", HOSTS, now=now), authority.issue("client", (), now=now)
    server_side = context(ssl.PROTOCOL_TLS_SERVER, authority, store, tmp_path / "server")
    client_side = context(ssl.PROTOCOL_TLS_CLIENT, authority, client, tmp_path / "client")
    for name in ("main-7.main.shop.svc", "localhost", "127.0.0.1"):
        assert await greet(server_side, client_side, name) == b"hello"


async def test_clusters_do_not_accept_each_other(tmp_path: Path) -> None:
    """A certificate of another cluster's authority, from the same seed, is refused."""
    mine, theirs = Authority(SEED, "shop/main"), Authority(SEED, "shop/other")
    now = datetime.now(UTC)
    server_side = context(ssl.PROTOCOL_TLS_SERVER, mine, mine.issue("store", HOSTS, now=now), tmp_path / "server")
    stranger = context(ssl.PROTOCOL_TLS_CLIENT, mine, theirs.issue("store", HOSTS, now=now), tmp_path / "client")
    try:
        said = await greet(server_side, stranger, "localhost")
    except (ssl.SSLError, ConnectionError):
        said = b""
    assert said == b""

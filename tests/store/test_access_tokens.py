"""Authentication: access tokens and TLS, and errors that say what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import flight

from evenkeel.errors import AccessError, RequestError, UnavailableError
from evenkeel.wire.flight import RebuildRequest
from evenkeel_store.maintenance.peer_stores import Credentials, PeerStoreClient
from evenkeel_store.serving.access_tokens import AccessTokenFile
from evenkeel_store.serving.flight_server import ServerTls
from tests.raft_net.test_peer_tls import Authority
from tests.store.serving import ORDERS, Client, Store, table_record


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ca")


async def test_tokens(tmp_path: Path) -> None:
    """Only calls with an accepted token succeed, of every kind; the connection stays usable."""
    async with Store(tmp_path, tokens=lambda: [b"one", b"two"]) as store:
        await store.table(table_record(ORDERS))
        for token, said in (
            ("", "no access token was sent"),
            ("three", "the access token is not valid for this store"),
        ):
            client = Client(store.address, token=token)
            with pytest.raises(AccessError, match=said):
                await client.rows()
            with pytest.raises(AccessError, match=said):
                await client.put([{"id": 1}])
            with pytest.raises(AccessError, match=said):
                await client.act("status")
            with pytest.raises(AccessError, match=said):
                await client.info(flight.FlightDescriptor.for_path("orders"))
            await client.close()
        client = Client(store.address, token="two")
        await client.put([{"id": 1}])
        assert len(await client.rows()) == 1
        await client.close()


def test_tokens_are_read_again(tmp_path: Path) -> None:
    """A replaced file, like a mounted Secret, takes effect at once; a missing one changes nothing."""
    file = tmp_path / "tokens"
    file.write_text("one\n\ntwo\n")
    tokens = AccessTokenFile(file)
    assert tokens.tokens() == [b"one", b"two"]
    fresh = tmp_path / "fresh"
    fresh.write_text("three")
    os.replace(fresh, file)
    assert tokens.tokens() == [b"three"]
    file.unlink()
    assert tokens.tokens() == [b"three"]
    with pytest.raises(FileNotFoundError):
        AccessTokenFile(file)


async def test_tls(tmp_path: Path, authority: Authority) -> None:
    """A client that trusts the CA can read; one that does not, or uses no TLS, cannot."""
    files = authority.issue("store")
    async with Store(tmp_path, tls=ServerTls(files.cert, files.key)) as store:
        await store.table(table_record(ORDERS))
        client = Client(store.address, tls_root_certs=files.ca.read_bytes())
        await client.put([{"id": 1}])
        assert len(await client.rows()) == 1
        await client.close()
        stranger = Client(store.address)
        with pytest.raises(flight.FlightUnavailableError):
            await stranger.rows()
        await stranger.close()
        plain = Client(store.address.replace("+tls", ""))
        with pytest.raises(flight.FlightUnavailableError):
            await plain.rows()
        await plain.close()


async def test_client_certificates(tmp_path: Path, authority: Authority) -> None:
    """If client certificates are required, a client without one is rejected."""
    files, mine = authority.issue("store"), authority.issue("client")
    async with Store(tmp_path, tls=ServerTls(files.cert, files.key, files.ca)) as store:
        await store.table(table_record(ORDERS))
        trust, chain, key = (file.read_bytes() for file in (files.ca, mine.cert, mine.key))
        client = Client(store.address, tls_root_certs=trust, cert_chain=chain, private_key=key)
        assert await client.rows() == []
        await client.close()
        without = Client(store.address, tls_root_certs=trust)
        with pytest.raises(flight.FlightUnavailableError):
            await without.rows()
        await without.close()


async def test_peer_store_client(tmp_path: Path, authority: Authority) -> None:
    """A store presents its certificate and its first token to other stores; refusals raise errors."""
    files, mine = authority.issue("store"), authority.issue("other")
    async with Store(tmp_path, tls=ServerTls(files.cert, files.key, files.ca), tokens=lambda: [b"one"]) as store:
        await store.table(table_record(ORDERS, partitions=2), partitions=(0, 1))
        peers = PeerStoreClient(Credentials(tokens=lambda: [b"one", b"old"], ca=files.ca, cert=mine.cert, key=mine.key))
        found = await peers.status(store.address, "orders.1", 1)
        assert found is not None
        assert (found.table, found.partition) == ("orders.1", 1)
        assert await peers.status(store.address, "orders.1", 2) is None
        with pytest.raises(RequestError, match="nothing to rebuild"):
            await peers.rebuild(store.address, RebuildRequest(table="orders.1", partition=1, index=1, hash="0:0"))
        tokenless = PeerStoreClient(Credentials(ca=files.ca, cert=mine.cert, key=mine.key))
        with pytest.raises(AccessError):
            await tokenless.status(store.address, "orders.1", 1)
        with pytest.raises(UnavailableError):
            await PeerStoreClient(Credentials(ca=files.ca)).status(store.address, "orders.1", 1)

"""TLS between stores: both ends authenticate, and others are refused with a reason."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.wire.framing import Reason
from evenkeel_raft.core import raft_messages as raft
from evenkeel_raft.net.peer_tls import TlsFiles
from tests.raft_net.support import Raw, Store, introduce, turns

NewStore = Callable[..., Awaitable[Store]]
MESSAGE = raft.ReadRequest(1, 0, 1, 2, 3, 4)


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """Issues certificates."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.cert, self.key = directory / f"{name}.crt", directory / f"{name}.key"
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", str(self.key), "-out", str(self.cert)),
        )

    def issue(self, name: str, *, san: str = "IP:127.0.0.1", days: tuple[str, ...] = ("-days", "1")) -> TlsFiles:
        cert, key, request = (self.directory / f"{name}.{suffix}" for suffix in ("crt", "key", "csr"))
        extensions = self.directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={san}\n")
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", str(key), "-out", str(request)),
        )
        openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.cert), "-CAkey", str(self.key), "-CAcreateserial"),
            *("-extfile", str(extensions), "-out", str(cert), *days),
        )
        return TlsFiles(self.cert, cert, key)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ca")


@pytest.fixture(scope="module")
def good(authority: Authority) -> TlsFiles:
    return authority.issue("good")


async def test_good_certificates(new_store: NewStore, good: TlsFiles) -> None:
    """Two stores with certificates of one authority connect in both directions."""
    one, two = await new_store("store-1", tls=good), await new_store("store-2", tls=good)
    introduce(one, two)
    assert await one.handler.up.get() == "store-2"
    assert await two.handler.up.get() == "store-1"
    one.peers.send("store-2", MESSAGE)
    two.peers.send("store-1", MESSAGE)
    assert await two.handler.messages.get() == ("store-1", MESSAGE)
    assert await one.handler.messages.get() == ("store-2", MESSAGE)
    assert not one.peers.drops
    assert not two.peers.drops


@pytest.fixture(params=["expired", "other authority"])
def bad(request: pytest.FixtureRequest, authority: Authority, tmp_path: Path) -> TlsFiles:
    if request.param == "expired":
        return authority.issue(f"expired-{tmp_path.name}", days=("-days", "-1"))
    return Authority(tmp_path, "other").issue("foreign")._replace(ca=authority.cert)


@pytest.mark.parametrize("side", ["dialling", "accepting"])
async def test_bad_certificates(new_store: NewStore, good: TlsFiles, bad: TlsFiles, side: str) -> None:
    """A store with a bad certificate gets no link, at either end; the checking end counts the reason."""
    one = await new_store("store-1", tls=bad if side == "dialling" else good)
    two = await new_store("store-2", tls=bad if side == "accepting" else good)
    introduce(one, two)
    judge = two if side == "dialling" else one
    await turns(lambda: judge.peers.drops[Reason.TLS] >= 2)
    assert one.handler.up.empty()
    assert two.handler.up.empty()


async def test_certificate_of_another_host(new_store: NewStore, authority: Authority, good: TlsFiles) -> None:
    """The dialled store's certificate must name the host that was dialled."""
    one = await new_store("store-1", tls=good)
    two = await new_store("store-2", tls=authority.issue("elsewhere", san="DNS:elsewhere"))
    introduce(one, two)
    await turns(lambda: one.peers.drops[Reason.TLS] >= 2)
    assert "127.0.0.1" in one.peers.refusals["store-2"]
    assert one.handler.up.empty()


async def test_server_name_can_be_set(new_store: NewStore, authority: Authority) -> None:
    """A configured server name is checked instead of the host."""
    files = authority.issue("named", san="DNS:stores.evenkeel")._replace(server_name="stores.evenkeel")
    one, two = await new_store("store-1", tls=files), await new_store("store-2", tls=files)
    introduce(one, two)
    assert await one.handler.up.get() == "store-2"


async def test_plaintext_is_refused(new_store: NewStore, good: TlsFiles) -> None:
    """A connection without TLS is refused where TLS is required, and the reverse."""
    one, two = await new_store("store-1"), await new_store("store-2", tls=good)
    introduce(one, two)
    await turns(lambda: two.peers.drops[Reason.TLS] >= 2)
    raw = await Raw.connect(two.port)
    raw.writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await raw.ended()
    await raw.close()
    assert one.handler.up.empty()
    secret, plain = await new_store("store-3", tls=good), await new_store("store-4")
    introduce(secret, plain)
    await turns(lambda: secret.peers.drops[Reason.TLS] >= 2)
    assert plain.handler.up.empty()


async def test_renewed_files_are_used(new_store: NewStore, authority: Authority, tmp_path: Path) -> None:
    """Replaced files are used for the next connection, without a restart."""
    expired = authority.issue("old", days=("-days", "-1"))
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(expired.cert.read_bytes())
    key.write_bytes(expired.key.read_bytes())
    files = TlsFiles(authority.cert, cert, key)
    one, two = await new_store("store-1", tls=files), await new_store("store-2", tls=files)
    introduce(one, two)
    await turns(lambda: one.peers.drops[Reason.TLS] >= 1)
    fresh = authority.issue("fresh")
    key.write_bytes(fresh.key.read_bytes())
    cert.write_bytes(fresh.cert.read_bytes())
    assert await one.handler.up.get() == "store-2"


@pytest.mark.parametrize("missing", ["ca", "cert", "key"])
def test_missing_file_is_named(tmp_path: Path, good: TlsFiles, missing: str) -> None:
    """A missing file is named at startup."""
    with pytest.raises(InvalidInputError, match="nothing-here"):
        TlsFiles(**(good._asdict() | {missing: tmp_path / "nothing-here"})).server_context()


def test_key_of_another_certificate_is_refused(good: TlsFiles, authority: Authority) -> None:
    """A key that does not match the certificate is refused with advice."""
    with pytest.raises(InvalidInputError, match="check that the key belongs to the certificate"):
        good._replace(key=authority.key).client_context()

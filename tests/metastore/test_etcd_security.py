"""TLS, client certificates, users and passwords."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aetcd import rpc

from evenkeel.errors import AuthenticationError, UnreachableError
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer, ServerTls
from tests.metastore.support import events_until, events_until_end, put, settings_for, shown


class Certificates(NamedTuple):
    """Certificate files, each with its key."""

    ca: Path
    server: Path
    client: Path
    other_ca: Path

    def server_tls(self, *, clients_too: bool) -> ServerTls:
        key = self.server.with_suffix(".key")
        if not clients_too:
            return ServerTls(cert=self.server, key=key, ca=self.ca)
        client_key = self.client.with_suffix(".key")
        return ServerTls(cert=self.server, key=key, ca=self.ca, client_cert=self.client, client_key=client_key)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Create an authority, a server certificate for 127.0.0.1, a client certificate, and an untrusted authority."""
    if shutil.which("openssl") is None:
        pytest.fail("the openssl command is missing: install it (apt install openssl)")
    folder = tmp_path_factory.mktemp("certificates")
    ca, other_ca = (_authority(folder / f"{name}.pem") for name in ("ca", "other"))
    server = _certificate(folder / "server.pem", ca=ca, names="IP:127.0.0.1,DNS:localhost")
    client = _certificate(folder / "client.pem", ca=ca, names="DNS:evenkeel")
    return Certificates(ca, server, client, other_ca)


async def test_tls(new_server: Callable[..., EtcdServer], certificates: Certificates) -> None:
    """Requests and watches work over TLS with the right authority."""
    async with (
        new_server(tls=certificates.server_tls(clients_too=False), fsync=False) as server,
        EtcdMetastore(server.settings()) as store,
    ):
        watch = store.watch("/w/", after=await store.range("/w/"))
        await store.txn(put("/w/a", b"1"))
        assert shown(await events_until_end(watch, store, "/w/")) == [("a", b"1")]


async def test_unknown_authority(new_server: Callable[..., EtcdServer], certificates: Certificates) -> None:
    """A server certificate of another authority is not trusted, and the error says what to check."""
    async with new_server(tls=certificates.server_tls(clients_too=False), fsync=False) as server:
        settings = settings_for(server.endpoint, ca=certificates.other_ca, request_timeout=0.5)
        async with EtcdMetastore(settings) as store:
            with pytest.raises(UnreachableError, match=r"(?i)certificate.*TLS settings"):
                await store.get("a")


async def test_client_certificate(new_server: Callable[..., EtcdServer], certificates: Certificates) -> None:
    """If client certificates are required, a client with one is accepted, and one without gets an error."""
    key = certificates.client.with_suffix(".key")
    async with new_server(tls=certificates.server_tls(clients_too=True), fsync=False) as server:
        settings = settings_for(server.endpoint, ca=certificates.ca, cert=certificates.client, key=key)
        async with EtcdMetastore(settings) as store:
            assert (await store.txn(put("a"))).succeeded
        stranger = {"cert": certificates.other_ca, "key": certificates.other_ca.with_suffix(".key")}
        for changes in ({}, stranger):
            async with EtcdMetastore(settings_for(server.endpoint, ca=certificates.ca, **changes)) as store:
                with pytest.raises(AuthenticationError, match="check cert and key"):
                    await store.get("a")


async def test_unreadable_certificate_file(certificates: Certificates, tmp_path: Path) -> None:
    """The error names the missing file."""
    async with EtcdMetastore(settings_for("https://127.0.0.1:1", ca=tmp_path / "none.pem")) as store:
        with pytest.raises(AuthenticationError, match=r"none\.pem"):
            await store.get("a")


@pytest.fixture
async def guarded(new_server: Callable[..., EtcdServer]) -> AsyncIterator[EtcdServer]:
    """A server with authentication and a user who may access only `/ours/`."""
    async with new_server(fsync=False) as server:
        await _enable_authentication(server)
        yield server


def as_user(server: EtcdServer, **changes: Any) -> EtcdMetastore:
    return EtcdMetastore(settings_for(server.endpoint, **({"user": "keel", "password": "even"} | changes)))


async def test_user_and_password(guarded: EtcdServer) -> None:
    """The right password gives access to the keys of the user's role only."""
    async with as_user(guarded) as store:
        assert await store.cluster_id()
        watch = store.watch("/ours/", after=await store.range("/ours/"))
        await store.txn(put("/ours/a", b"1"))
        assert shown(await events_until_end(watch, store, "/ours/")) == [("a", b"1")]
        with pytest.raises(AuthenticationError, match="permission denied"):
            await store.get("/theirs/a")
        with pytest.raises(AuthenticationError, match="permission denied"):
            await events_until(store.watch("/theirs/", after=await store.range("/ours/")), lambda _: True)


async def test_wrong_password(guarded: EtcdServer) -> None:
    """A wrong password fails at once, for requests and for watches."""
    async with as_user(guarded) as store:
        snapshot = await store.range("/ours/")
    async with as_user(guarded, password="odd") as store:
        with pytest.raises(AuthenticationError, match="invalid user ID or password"):
            await store.get("/ours/a")
        with pytest.raises(AuthenticationError, match="invalid user ID or password"):
            await events_until(store.watch("/ours/", after=snapshot), lambda _: True)


async def test_missing_password(guarded: EtcdServer) -> None:
    """A client without credentials gets an error that says so."""
    async with as_user(guarded, user="", password="") as store:
        with pytest.raises(AuthenticationError, match="requires a user and a password"):
            await store.get("/ours/a")


async def test_credentials_without_authentication(new_server: Callable[..., EtcdServer]) -> None:
    """Credentials are harmless while authentication is off, and used once it is on."""
    async with new_server(fsync=False) as server, as_user(server) as store:
        await store.txn(put("/ours/a"))
        await _enable_authentication(server)
        assert (await store.txn(put("/ours/a"))).succeeded


async def test_token_is_renewed(guarded: EtcdServer) -> None:
    """A stale access token is replaced transparently, also in transactions."""
    async with as_user(guarded) as store:
        snapshot = await store.range("/ours/")
        connection = store._link._connection
        assert connection is not None
        await _forget_tokens(guarded)
        assert connection.alive()
        assert (await store.txn(put("/ours/a", b"1"))).succeeded
        await _forget_tokens(guarded)
        watch = store.watch("/ours/", after=snapshot)
        assert shown(await events_until(watch, lambda _: True)) == [("a", b"1")]


async def test_tokens_do_not_survive_a_restart(guarded: EtcdServer) -> None:
    """After a server restart, requests and a running watch log in again."""
    async with as_user(guarded) as store:
        watch = store.watch("/ours/", after=await store.range("/ours/"))
        await store.txn(put("/ours/a", b"1"))
        await events_until(watch, lambda _: True)
        await (guarded.kill() if guarded.binary.survives_kill else guarded.terminate())
        await guarded.start()
        assert (await store.txn(put("/ours/a", b"2"))).succeeded
        assert shown(await events_until_end(watch, store, "/ours/")) == [("a", b"2")]


async def _enable_authentication(server: EtcdServer) -> None:
    async with rpc.insecure_channel(server.endpoint.removeprefix("http://")) as channel:
        auth = rpc.AuthStub(channel)
        await auth.UserAdd(rpc.AuthUserAddRequest(name="keel", password="even"))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="keel"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="keel", role="keel"))
        allowed = rpc.Permission(permType=rpc.Permission.READWRITE, key=b"/ours/", range_end=b"/ours0")
        await auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="keel", perm=allowed))
    await server.require_password("root")


async def _forget_tokens(server: EtcdServer) -> None:
    """Disable and enable authentication: all access tokens become invalid, and connections stay."""
    async with rpc.insecure_channel(server.endpoint.removeprefix("http://")) as channel:
        auth = rpc.AuthStub(channel)
        login = await auth.Authenticate(rpc.AuthenticateRequest(name="root", password="root"))
        await auth.AuthDisable(rpc.AuthDisableRequest(), metadata=(("token", login.token),))
        await auth.AuthEnable(rpc.AuthEnableRequest())


def _authority(path: Path) -> Path:
    _openssl("req", "-x509", *_new_key(path), "-subj", f"/CN={path.stem}", "-days", "2", "-out", path)
    return path


def _certificate(path: Path, *, ca: Path, names: str) -> Path:
    _openssl(
        "req", "-x509", *_new_key(path), "-subj", f"/CN={path.stem}", "-days", "2", "-out", path,
        "-CA", ca, "-CAkey", ca.with_suffix(".key"), "-addext", f"subjectAltName={names}",
        "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=serverAuth,clientAuth",
    )  # fmt: skip
    return path


def _new_key(path: Path) -> list[object]:
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    return [*kind, "-nodes", "-keyout", path.with_suffix(".key")]


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

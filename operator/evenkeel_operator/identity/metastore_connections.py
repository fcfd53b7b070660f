"""Which etcd a StoreCluster uses, and with which credentials the operator and the store pods connect to it.

A StoreCluster uses the operator's own etcd unless its spec names another. Credentials are texts under the keys that
Secrets use (`ca.crt`, `tls.crt`, `tls.key`, `username`, `password`). They come from files, a Secret or the operator's
authority.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from evenkeel.errors import InvalidInputError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import SECRET
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.model.storecluster import StoreCluster
from evenkeel_operator.identity.authority import Authority
from evenkeel_operator.manifests.object_names import metastore_secret
from evenkeel_operator.manifests.pod_settings import MetastoreAccess

__all__ = ["Credentials", "Metastores", "credentials_of", "issued_credentials"]

Credentials = Mapping[str, str]
_KEYS: Final = ("ca.crt", "tls.crt", "tls.key", "username", "password")


def credentials_of(settings: EtcdSettings) -> Credentials:
    """Read the operator's own credentials, to copy them into a Secret for the pods."""
    files = {"ca.crt": settings.ca, "tls.crt": settings.cert, "tls.key": settings.key}
    texts = {"username": settings.user, "password": settings.password}
    try:
        return {key: file.read_text() for key, file in files.items() if file} | {k: v for k, v in texts.items() if v}
    except OSError as error:
        raise InvalidInputError(f"cannot read {error.filename} of the etcd credentials: {error.strerror}") from error


def issued_credentials(authority: Authority, subject: str, *, now: datetime) -> Credentials:
    """Issue client credentials for the bundled etcd."""
    issued = authority.issue(subject, (), now=now)
    return {"ca.crt": authority.certificate, "tls.crt": issued.certificate, "tls.key": issued.key}


class Metastores:
    """Connections to etcd, one for each set of endpoints and credentials in use."""

    def __init__(
        self,
        kube: Kube,
        *,
        own: EtcdSettings,
        folder: Path,
        authority: Authority | None = None,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`folder` is for certificates as files; `authority` signs client certificates for the bundled etcd."""
        self._kube = kube
        self._own = own
        self._folder = folder
        self._authority = authority
        self._wall_clock = wall_clock
        self._open: dict[EtcdSettings, EtcdMetastore] = {}
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        """Close all connections."""
        for metastore in self._open.values():
            await metastore.close()
        self._open.clear()

    def own(self) -> EtcdMetastore:
        """Return the connection to the operator's own etcd."""
        return self._connected(self.own_settings())

    def own_settings(self) -> EtcdSettings:
        """Return the settings for the operator's own etcd."""
        if self._authority is None:
            return self._own
        return self._settings("own", issued_credentials(self._authority, "operator", now=self._wall_clock()), ())

    async def of(self, cluster: StoreCluster) -> EtcdMetastore:
        """Return the connection to a StoreCluster's etcd; InvalidInputError if the Secret that it names is missing."""
        override = cluster.spec.metastore
        if override is None:
            return self.own()
        async with self._lock:
            credentials = await self._named(cluster)
            where = f"{cluster.metadata.namespace}.{cluster.metadata.name}"
            return self._connected(self._settings(where, credentials, override.endpoints))

    async def for_pods(self, cluster: StoreCluster) -> tuple[MetastoreAccess, Credentials]:
        """Return how pods reach etcd, and the credentials to copy into a Secret; none if the user provides one."""
        override = cluster.spec.metastore
        if override is not None:
            found = await self._named(cluster)
            access = MetastoreAccess(
                endpoints=override.endpoints, secret=override.secret_name or "", keys=frozenset(found)
            )
            return access, {}
        if self._authority is not None:
            subject = f"{cluster.metadata.namespace}/{cluster.metadata.name}"
            found = issued_credentials(self._authority, subject, now=self._wall_clock())
        else:
            found = credentials_of(self._own)
        access = MetastoreAccess(
            endpoints=self._own.endpoints,
            secret=metastore_secret(cluster) if found else "",
            keys=frozenset(found),
            server_name=self._own.server_name,
        )
        return access, found

    async def _named(self, cluster: StoreCluster) -> Credentials:
        override = cluster.spec.metastore
        if override is None or override.secret_name is None:
            return {}
        name, namespace = override.secret_name, cluster.metadata.namespace
        secret = await self._kube.get(SECRET, name, namespace)
        if secret is None:
            raise InvalidInputError(
                f"spec.metastore.secretName: there is no Secret {name} in namespace {namespace}; create it"
            )
        try:
            data = secret.get("data") or {}
            return {key: base64.b64decode(data[key], validate=True).decode() for key in _KEYS if key in data}
        except (binascii.Error, UnicodeDecodeError) as error:
            raise InvalidInputError(f"Secret {namespace}/{name} is not base64-encoded text: {error}") from error

    def _settings(self, where: str, found: Credentials, endpoints: tuple[str, ...]) -> EtcdSettings:
        folder = self._folder / where
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files: dict[str, Path | None] = dict.fromkeys(_KEYS)
        for key in ("ca.crt", "tls.crt", "tls.key"):
            if key in found:
                files[key] = folder / key
                _write(folder / key, found[key])
        return msgspec.structs.replace(
            self._own,
            endpoints=endpoints or self._own.endpoints,
            ca=files["ca.crt"],
            cert=files["tls.crt"],
            key=files["tls.key"],
            user=found.get("username", ""),
            password=found.get("password", ""),
        )

    def _connected(self, settings: EtcdSettings) -> EtcdMetastore:
        if settings not in self._open:
            self._open[settings] = EtcdMetastore(settings)
        return self._open[settings]


def _write(file: Path, text: str) -> None:
    """Replace a file atomically; a concurrent reader sees the old content or the new."""
    if file.exists() and file.read_text() == text:
        return
    partial = file.with_suffix(".new")
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.rename(file)

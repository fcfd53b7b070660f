"""Who makes what stores show to each other and to clients: nobody, the operator itself, or cert-manager.

Each source says which objects there have to be, and what came of them. A store reads its certificate when it starts,
so another one replaces the pods, one by one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple, Protocol

from evenkeel.errors import CertificateMissingError
from evenkeel.kube.client import Kube
from evenkeel.kube.kinds import CERTIFICATE, ISSUER, SECRET, Object
from evenkeel.model.storecluster import StoreCluster
from evenkeel_operator.authority import Authority, period
from evenkeel_operator.manifests import certificates, secrets
from evenkeel_operator.manifests.names import store_hosts, tls_secret
from evenkeel_operator.manifests.settings import CertManagerSettings

__all__ = ["CertManager", "CertificateSource", "NoCertificates", "OwnAuthorities", "Shown", "seed_name"]


class Shown(NamedTuple):
    """What others have to know of a StoreCluster's certificate."""

    authority: str = ""
    """What clients trust, as PEM; nothing where there is no TLS."""
    revision: str = ""
    """Another one with every renewal."""


class CertificateSource(Protocol):
    """Makes certificates for stores."""

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """What has to be there."""

    async def shown(self, cluster: StoreCluster) -> Shown:
        """What came of it; CertificateMissingError where there is nothing yet."""

    async def clean(self, cluster: StoreCluster) -> None:
        """Remove what does not go by itself when the StoreCluster goes."""


class NoCertificates:
    """Stores and clients speak in plain text."""

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """None."""
        return []

    async def shown(self, cluster: StoreCluster) -> Shown:
        """Nothing."""
        return Shown()

    async def clean(self, cluster: StoreCluster) -> None:
        """There is nothing to remove."""


def seed_name(cluster: StoreCluster) -> str:
    """What a StoreCluster's keys and tokens are derived by: one that is made anew under its name is another."""
    return f"{cluster.key}/{cluster.metadata.uid}"


class OwnAuthorities:
    """The operator signs, with an authority for each StoreCluster, all of them from its seed."""

    def __init__(self, seed: bytes, today: Callable[[], datetime]) -> None:
        self._seed = seed
        self._today = today

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """The Secret with the certificate."""
        authority = Authority(self._seed, seed_name(cluster))
        issued = authority.issue("store", store_hosts(cluster), now=self._today())
        return [
            secrets.store_certificate(
                cluster, authority=authority.certificate, certificate=issued.certificate, key=issued.key
            )
        ]

    async def shown(self, cluster: StoreCluster) -> Shown:
        """Follows from the seed and the calendar alone."""
        return Shown(Authority(self._seed, seed_name(cluster)).certificate, str(period(self._today())))

    async def clean(self, cluster: StoreCluster) -> None:
        """The Secret goes with its owner."""


class CertManager:
    """cert-manager signs, and renews when it thinks fit."""

    def __init__(self, kube: Kube, settings: CertManagerSettings) -> None:
        self._kube = kube
        self._settings = settings

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """Issuers and Certificates; the Secret is cert-manager's."""
        return certificates.requested(cluster, self._settings)

    async def shown(self, cluster: StoreCluster) -> Shown:
        """What is in the Secret by now."""
        name, namespace = tls_secret(cluster), cluster.metadata.namespace
        secret = await self._kube.get(SECRET, name, namespace)
        data = (secret or {}).get("data") or {}
        if not data.get("tls.crt"):
            raise CertificateMissingError(
                f"cert-manager has not filled the Secret {namespace}/{name} yet: {await self._why_not(cluster)}"
            )
        if not data.get("ca.crt"):
            raise CertificateMissingError(
                f"the Secret {namespace}/{name} has no ca.crt, so that nobody could check what stores show: name an "
                "issuer that tells its authority, as those of kind CA do"
            )
        try:
            authority = base64.b64decode(data["ca.crt"], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise CertificateMissingError(f"ca.crt of the Secret {namespace}/{name} is no text: {error}") from error
        return Shown(authority, hashlib.sha256(data["tls.crt"].encode()).hexdigest()[:16])

    async def clean(self, cluster: StoreCluster) -> None:
        """Secrets stay when Certificates go, and would be filled again if they went first."""
        requested = self.objects(cluster)
        for kind in (CERTIFICATE, ISSUER):
            for subject in requested:
                if subject["kind"] == kind.name:
                    await self._kube.delete(kind, subject["metadata"]["name"], cluster.metadata.namespace)
        for subject in requested:
            if subject["kind"] == CERTIFICATE.name:
                await self._kube.delete(SECRET, subject["spec"]["secretName"], cluster.metadata.namespace)

    async def _why_not(self, cluster: StoreCluster) -> str:
        found = await self._kube.get(CERTIFICATE, tls_secret(cluster), cluster.metadata.namespace)
        conditions = (found or {}).get("status", {}).get("conditions", ())
        told = [str(entry.get("message", "")) for entry in conditions]
        return "; ".join(filter(None, told)) or "it has not looked at the Certificate; is it running?"

"""Who makes what stores show to each other and to clients: nobody, the operator itself, or cert-manager.

Each source says which objects there have to be, and what came of them. A store reads its certificate when it starts,
so another one replaces the pods, one by one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from evenkeel.errors import CertificateMissingError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import CERTIFICATE, ISSUER, SECRET, Object
from evenkeel.model.storecluster import StoreCluster
from evenkeel_operator.identity.authority import Authority, period
from evenkeel_operator.kube.object_applier import Applier, foreign, owned
from evenkeel_operator.manifests import cert_manager, secrets
from evenkeel_operator.manifests.object_names import OWNER_ANNOTATION, metadata_of, store_hosts, tls_secret
from evenkeel_operator.manifests.pod_settings import CertManagerSettings

__all__ = [
    "CertManager",
    "CertificateSource",
    "NoCertificates",
    "OperatorAuthorities",
    "PublishedCertificate",
    "seed_name",
]


_CERTIFICATE_NAME: Final = "cert-manager.io/certificate-name"
"""By which cert-manager says in a Secret which Certificate it was made for."""


class PublishedCertificate(NamedTuple):
    """What others have to know of a StoreCluster's certificate."""

    authority: str = ""
    """What clients trust, as PEM; nothing where there is no TLS."""
    revision: str = ""
    """Another one with every renewal."""


class CertificateSource(Protocol):
    """Makes certificates for stores."""

    async def check(self, cluster: StoreCluster) -> None:
        """ForeignObjectError where making certificates would change what belongs to others."""

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """What has to be there."""

    async def shown(self, cluster: StoreCluster) -> PublishedCertificate:
        """What came of it; CertificateMissingError where there is nothing yet."""

    async def clean(self, cluster: StoreCluster) -> None:
        """Remove what does not go by itself when the StoreCluster goes."""


class NoCertificates:
    """Stores and clients speak in plain text."""

    async def check(self, cluster: StoreCluster) -> None:
        """Nothing is made."""

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """None."""
        return []

    async def shown(self, cluster: StoreCluster) -> PublishedCertificate:
        """Nothing."""
        return PublishedCertificate()

    async def clean(self, cluster: StoreCluster) -> None:
        """There is nothing to remove."""


def seed_name(cluster: StoreCluster) -> str:
    """What a StoreCluster's keys and tokens are derived by: one that is made anew under its name is another."""
    return f"{cluster.key}/{cluster.metadata.uid}"


class OperatorAuthorities:
    """The operator signs, with an authority for each StoreCluster, all of them from its seed."""

    def __init__(self, seed: bytes, wall_clock: Callable[[], datetime]) -> None:
        self._seed = seed
        self._wall_clock = wall_clock

    async def check(self, cluster: StoreCluster) -> None:
        """Nobody else writes the Secret, and it is applied like all else."""

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """The Secret with the certificate."""
        authority = Authority(self._seed, seed_name(cluster))
        issued = authority.issue("store", store_hosts(cluster), now=self._wall_clock())
        return [
            secrets.store_certificate(
                cluster, authority=authority.certificate, certificate=issued.certificate, key=issued.key
            )
        ]

    async def shown(self, cluster: StoreCluster) -> PublishedCertificate:
        """Follows from the seed and the calendar alone."""
        return PublishedCertificate(
            Authority(self._seed, seed_name(cluster)).certificate, str(period(self._wall_clock()))
        )

    async def clean(self, cluster: StoreCluster) -> None:
        """The Secret goes with its owner."""


class CertManager:
    """cert-manager signs, and renews when it thinks fit."""

    def __init__(self, kube: Kube, settings: CertManagerSettings) -> None:
        self._kube = kube
        self._settings = settings
        self._applier = Applier(kube)

    async def check(self, cluster: StoreCluster) -> None:
        """Refuse to have cert-manager overwrite a Secret that was not made for this StoreCluster."""
        for name in _certified_secrets(self.objects(cluster)):
            found = await self._kube.get(SECRET, name, cluster.metadata.namespace)
            if found is not None and not await self._ours(cluster, found):
                raise foreign(found)

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """Issuers and Certificates; the Secret is cert-manager's."""
        return cert_manager.requested(cluster, self._settings)

    async def shown(self, cluster: StoreCluster) -> PublishedCertificate:
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
        return PublishedCertificate(authority, hashlib.sha256(data["tls.crt"].encode()).hexdigest()[:16])

    async def clean(self, cluster: StoreCluster) -> None:
        """Secrets stay when Certificates go, and would be filled again if they went first."""
        requested = self.objects(cluster)
        names, namespace = _certified_secrets(requested), cluster.metadata.namespace
        found = [await self._kube.get(SECRET, name, namespace) for name in names]
        ours = {secret["metadata"]["uid"] for secret in found if secret and await self._ours(cluster, secret)}
        for kind in (CERTIFICATE, ISSUER):
            for subject in requested:
                if subject["kind"] == kind.name:
                    await self._applier.delete(subject)
        for name in names:
            secret = await self._kube.get(SECRET, name, namespace)
            if secret is not None and secret["metadata"]["uid"] in ours:
                await self._kube.delete_exactly(secret)

    async def _ours(self, cluster: StoreCluster, secret: Object) -> bool:
        """Whether a Secret was made for this StoreCluster, by cert-manager or by the operator itself."""
        metadata = secret["metadata"]
        ours = {"metadata": metadata_of(cluster, metadata["name"])}
        owner = (metadata.get("annotations") or {}).get(OWNER_ANNOTATION)
        if owner is not None or not _issued(secret):
            return owner == cluster.metadata.uid or owned(secret, ours)
        # Certificates of earlier releases did not say whose their Secrets are.
        certificate = await self._kube.get(CERTIFICATE, metadata["name"], metadata["namespace"])
        return certificate is not None and owned(certificate, ours)

    async def _why_not(self, cluster: StoreCluster) -> str:
        found = await self._kube.get(CERTIFICATE, tls_secret(cluster), cluster.metadata.namespace)
        conditions = (found or {}).get("status", {}).get("conditions", ())
        told = [str(entry.get("message", "")) for entry in conditions]
        return "; ".join(filter(None, told)) or "it has not looked at the Certificate; is it running?"


def _certified_secrets(requested: Iterable[Object]) -> list[str]:
    """The Secrets that cert-manager fills; each is named as its Certificate."""
    return [subject["spec"]["secretName"] for subject in requested if subject["kind"] == CERTIFICATE.name]


def _issued(secret: Object) -> bool:
    """Whether cert-manager wrote a Secret for the Certificate of the same name."""
    metadata = secret["metadata"]
    return bool((metadata.get("annotations") or {}).get(_CERTIFICATE_NAME) == metadata["name"])

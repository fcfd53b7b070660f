"""Sources of store certificates: none (plain text), the operator itself, or cert-manager.

Each source returns the objects to apply and the certificate that results. A store reads its certificate at start, so a
new certificate replaces the pods, one at a time.
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
"""Annotation by which cert-manager names the Certificate that a Secret belongs to."""


class PublishedCertificate(NamedTuple):
    """The public side of a StoreCluster's certificate."""

    authority: str = ""
    """The certificate authority that clients trust, as PEM; empty without TLS."""
    revision: str = ""
    """Changes with every renewal."""


class CertificateSource(Protocol):
    """Provides the certificates of stores."""

    async def check(self, cluster: StoreCluster) -> None:
        """Raise ForeignObjectError if issuing certificates would overwrite an object of another owner."""

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """Return the objects to apply."""

    async def published(self, cluster: StoreCluster) -> PublishedCertificate:
        """Return the resulting certificate; CertificateMissingError if it has not been issued yet."""

    async def clean(self, cluster: StoreCluster) -> None:
        """Delete what is not garbage-collected with the StoreCluster."""


class NoCertificates:
    """No TLS: stores and clients communicate in plain text."""

    async def check(self, cluster: StoreCluster) -> None:
        """Accept: nothing is created."""

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """Return nothing."""
        return []

    async def published(self, cluster: StoreCluster) -> PublishedCertificate:
        """Return no certificate."""
        return PublishedCertificate()

    async def clean(self, cluster: StoreCluster) -> None:
        """Do nothing."""


def seed_name(cluster: StoreCluster) -> str:
    """Return the label from which keys and tokens are derived; a recreated StoreCluster gets new ones."""
    return f"{cluster.key}/{cluster.metadata.uid}"


class OperatorAuthorities:
    """The operator signs, with an authority per StoreCluster that is derived from the seed."""

    def __init__(self, seed: bytes, wall_clock: Callable[[], datetime]) -> None:
        self._seed = seed
        self._wall_clock = wall_clock

    async def check(self, cluster: StoreCluster) -> None:
        """Accept: the applier checks the owner of the Secret."""

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """Return the Secret with the certificate."""
        authority = Authority(self._seed, seed_name(cluster))
        issued = authority.issue("store", store_hosts(cluster), now=self._wall_clock())
        return [
            secrets.store_certificate(
                cluster, authority=authority.certificate, certificate=issued.certificate, key=issued.key
            )
        ]

    async def published(self, cluster: StoreCluster) -> PublishedCertificate:
        """Derive the authority from the seed; its revision is the validity period."""
        return PublishedCertificate(
            Authority(self._seed, seed_name(cluster)).certificate, str(period(self._wall_clock()))
        )

    async def clean(self, cluster: StoreCluster) -> None:
        """Do nothing: the Secret is garbage-collected with its owner."""


class CertManager:
    """cert-manager signs and renews."""

    def __init__(self, kube: Kube, settings: CertManagerSettings) -> None:
        self._kube = kube
        self._settings = settings
        self._applier = Applier(kube)

    async def check(self, cluster: StoreCluster) -> None:
        """Raise ForeignObjectError if cert-manager would overwrite a Secret of another owner."""
        for name in _certified_secrets(self.objects(cluster)):
            found = await self._kube.get(SECRET, name, cluster.metadata.namespace)
            if found is not None and not await self._ours(cluster, found):
                raise foreign(found)

    def objects(self, cluster: StoreCluster) -> list[Object]:
        """Return the Issuers and Certificates; cert-manager writes the Secrets."""
        return cert_manager.requested(cluster, self._settings)

    async def published(self, cluster: StoreCluster) -> PublishedCertificate:
        """Read the certificate from the Secret that cert-manager fills."""
        name, namespace = tls_secret(cluster), cluster.metadata.namespace
        secret = await self._kube.get(SECRET, name, namespace)
        data = (secret or {}).get("data") or {}
        if not data.get("tls.crt"):
            raise CertificateMissingError(
                f"cert-manager has not filled the Secret {namespace}/{name} yet: {await self._why_not(cluster)}"
            )
        if not data.get("ca.crt"):
            raise CertificateMissingError(
                f"the Secret {namespace}/{name} has no ca.crt, so clients cannot verify the stores; use an issuer that "
                "publishes its authority, such as one of type CA"
            )
        try:
            authority = base64.b64decode(data["ca.crt"], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise CertificateMissingError(f"ca.crt of the Secret {namespace}/{name} is not text: {error}") from error
        return PublishedCertificate(authority, hashlib.sha256(data["tls.crt"].encode()).hexdigest()[:16])

    async def clean(self, cluster: StoreCluster) -> None:
        """Delete Certificates and Issuers, then their Secrets, which cert-manager would recreate in the other order."""
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
        """Whether cert-manager or the operator created the Secret for this StoreCluster."""
        metadata = secret["metadata"]
        ours = {"metadata": metadata_of(cluster, metadata["name"])}
        owner = (metadata.get("annotations") or {}).get(OWNER_ANNOTATION)
        if owner is not None or not _issued(secret):
            return owner == cluster.metadata.uid or owned(secret, ours)
        # Secrets of earlier releases have no owner annotation.
        certificate = await self._kube.get(CERTIFICATE, metadata["name"], metadata["namespace"])
        return certificate is not None and owned(certificate, ours)

    async def _why_not(self, cluster: StoreCluster) -> str:
        found = await self._kube.get(CERTIFICATE, tls_secret(cluster), cluster.metadata.namespace)
        conditions = (found or {}).get("status", {}).get("conditions", ())
        messages = [str(entry.get("message", "")) for entry in conditions]
        return "; ".join(filter(None, messages)) or "the Certificate has no status; check that cert-manager is running"


def _certified_secrets(requested: Iterable[Object]) -> list[str]:
    """Return the names of the Secrets that cert-manager fills, which are those of their Certificates."""
    return [subject["spec"]["secretName"] for subject in requested if subject["kind"] == CERTIFICATE.name]


def _issued(secret: Object) -> bool:
    """Whether cert-manager wrote the Secret for the Certificate of the same name."""
    metadata = secret["metadata"]
    return bool((metadata.get("annotations") or {}).get(_CERTIFICATE_NAME) == metadata["name"])

"""Manifests for cert-manager: a Certificate for the stores, and an Issuer that signs it if the user names none.

Each StoreCluster has its own certificate authority, so no cluster trusts the stores of another. cert-manager copies the
owner annotation into each Secret (`secretTemplate`): a Secret gets no ownerReference, and another Certificate may name
it too.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from evenkeel.kube.object_kinds import CERTIFICATE, ISSUER, Object
from evenkeel.model.storecluster import StoreCluster
from evenkeel_operator.manifests.object_names import (
    OWNER_ANNOTATION,
    authority_name,
    metadata_of,
    store_hosts,
    tls_secret,
    written_object,
)
from evenkeel_operator.manifests.pod_settings import CertManagerSettings

__all__ = ["requested"]

_LONG: Final = "87600h"
"""Ten years. A renewed authority keeps its key, so the certificates it has signed stay valid."""


def requested(cluster: StoreCluster, settings: CertManagerSettings) -> list[Object]:
    """Return every object that cert-manager needs to fill the Secret of the stores' certificate."""
    name, kind = settings.issuer, settings.issuer_kind
    if name:
        return [_store_certificate(cluster, {"kind": kind, "name": name})]
    return [*_authority(cluster), _store_certificate(cluster, {"kind": ISSUER.name, "name": authority_name(cluster)})]


def _authority(cluster: StoreCluster) -> list[Object]:
    name, self_signed = authority_name(cluster), f"{cluster.metadata.name}-selfsigned"
    spec = {
        "isCA": True,
        "commonName": f"evenkeel {cluster.metadata.name}"[:64],
        "secretName": name,
        "secretTemplate": _secret_template(cluster),
        "duration": _LONG,
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Never"},
        "issuerRef": {"kind": ISSUER.name, "name": self_signed},
    }
    return [
        written_object(ISSUER, metadata_of(cluster, self_signed), spec={"selfSigned": {}}),
        written_object(CERTIFICATE, metadata_of(cluster, name), spec=spec),
        written_object(ISSUER, metadata_of(cluster, name), spec={"ca": {"secretName": name}}),
    ]


def _store_certificate(cluster: StoreCluster, issuer: dict[str, str]) -> Object:
    hosts = store_hosts(cluster)
    addresses = [host for host in hosts if _is_address(host)]
    spec: dict[str, Any] = {
        "secretName": tls_secret(cluster),
        "secretTemplate": _secret_template(cluster),
        "dnsNames": [host for host in hosts if host not in addresses],
        "ipAddresses": addresses,
        "usages": ["digital signature", "server auth", "client auth"],
        "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
        "issuerRef": issuer,
    }
    return written_object(CERTIFICATE, metadata_of(cluster, tls_secret(cluster)), spec=spec)


def _secret_template(cluster: StoreCluster) -> dict[str, Any]:
    return {"annotations": {OWNER_ANNOTATION: cluster.metadata.uid}}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

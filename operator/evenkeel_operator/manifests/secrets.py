"""Manifests of Secrets: client access, store certificates and etcd credentials.

Their content is derived from the StoreCluster and the operator's seed, so the operator never has to read a Secret to
decide whether it is up to date.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

from evenkeel.kube.object_kinds import SECRET, Object
from evenkeel.model.storecluster import StoreCluster
from evenkeel_operator.manifests.object_names import (
    FLIGHT_PORT,
    OWNER_ANNOTATION,
    client_secret,
    host_of,
    labels_of,
    metadata_of,
    metastore_secret,
    store_names,
    tls_secret,
    written_object,
)

__all__ = ["client_metadata", "client_secrets", "etcd_certificate", "metastore_copy", "store_certificate"]


def client_secrets(cluster: StoreCluster, *, token: str, authority: str = "") -> list[Object]:
    """Return the Secrets that clients mount: one in the StoreCluster's namespace, one in each client namespace."""
    scheme = "grpc+tls" if authority else "grpc"
    endpoints = [f"{scheme}://{host_of(cluster, store)}:{FLIGHT_PORT}" for store in store_names(cluster)]
    data = {
        "endpoints": ",".join(endpoints),
        "namespace": cluster.metadata.namespace,
        "store-cluster": cluster.metadata.name,
        "token": token,
        **({"ca.crt": authority} if authority else {}),
    }
    own = metadata_of(cluster, client_secret(cluster))
    elsewhere = [
        client_metadata(cluster, namespace)
        for namespace in cluster.spec.client_namespaces
        if namespace != cluster.metadata.namespace
    ]
    return [_secret(metadata, data) for metadata in (own, *elsewhere)]


def client_metadata(cluster: StoreCluster, namespace: str) -> Object:
    """Return the metadata of the Secret in a client's namespace; ownerReferences do not cross namespaces."""
    return {
        "name": client_secret(cluster),
        "namespace": namespace,
        "labels": labels_of(cluster),
        "annotations": {OWNER_ANNOTATION: cluster.metadata.uid},
    }


def store_certificate(cluster: StoreCluster, *, authority: str, certificate: str, key: str) -> Object:
    """Return the Secret with the certificate that stores present to each other and to clients."""
    data = {"ca.crt": authority, "tls.crt": certificate, "tls.key": key}
    return _secret(metadata_of(cluster, tls_secret(cluster)), data, kind="kubernetes.io/tls")


def metastore_copy(cluster: StoreCluster, data: Mapping[str, str]) -> Object:
    """Return the Secret with the etcd credentials of the stores."""
    return _secret(metadata_of(cluster, metastore_secret(cluster)), data)


def etcd_certificate(
    name: str, namespace: str, *, labels: Mapping[str, str], authority: str, certificate: str, key: str
) -> Object:
    """Return the Secret with the certificate that members of the bundled etcd present to peers and clients."""
    data = {"ca.crt": authority, "tls.crt": certificate, "tls.key": key}
    owner = {OWNER_ANNOTATION: f"{namespace}/{name}"}
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels), "annotations": owner}
    return _secret(metadata, data, kind="kubernetes.io/tls")


def _secret(metadata: Object, data: Mapping[str, str], *, kind: str = "Opaque") -> Object:
    encoded = {name: b64encode(value.encode()).decode() for name, value in data.items()}
    return written_object(SECRET, metadata, type=kind, data=encoded)

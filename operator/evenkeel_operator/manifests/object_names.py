"""Names, labels, annotations and ports of the objects that the operator creates."""

from __future__ import annotations

from typing import Any, Final

from evenkeel.kube.object_kinds import Kind, Object
from evenkeel.model.storecluster import StoreCluster

__all__ = [
    "FLIGHT_PORT",
    "MANAGED",
    "OWNER_ANNOTATION",
    "PEERS_PORT",
    "RAFT_HTTP_PORT",
    "STORE_CLUSTER_LABEL",
    "STORE_HTTP_PORT",
    "account_name",
    "authority_name",
    "client_secret",
    "host_of",
    "labels_of",
    "metadata_of",
    "metastore_secret",
    "selector_of",
    "store_hosts",
    "store_name",
    "store_names",
    "store_number",
    "tls_secret",
    "written_object",
]

STORE_CLUSTER_LABEL: Final = "evenkeel.dev/store-cluster"
MANAGED: Final = "app.kubernetes.io/managed-by=evenkeel-operator"
"""Label selector of every object that the operator created."""

OWNER_ANNOTATION: Final = "evenkeel.dev/owner"
"""Owner of an object that cannot have an ownerReference: the uid of a StoreCluster, or the operator's release."""

PEERS_PORT: Final = 7400
FLIGHT_PORT: Final = 7410
RAFT_HTTP_PORT: Final = 7480
STORE_HTTP_PORT: Final = 7490


def store_name(cluster: StoreCluster, number: int) -> str:
    """Return the name of a store, which is also the name of its pod."""
    return f"{cluster.metadata.name}-{number}"


def store_number(cluster: StoreCluster, store: str) -> int | None:
    """Return the ordinal in a store's name, or None if the name is not that of a store of this cluster."""
    digits = store.removeprefix(f"{cluster.metadata.name}-")
    return int(digits) if digits.isdecimal() and store == store_name(cluster, int(digits)) else None


def store_names(cluster: StoreCluster) -> list[str]:
    """Return the names of the stores that the spec asks for."""
    return [store_name(cluster, number) for number in range(cluster.spec.stores)]


def account_name(cluster: StoreCluster) -> str:
    """Return the name of the pods' ServiceAccount; the cluster's own name may belong to another ServiceAccount."""
    return f"{cluster.metadata.name}-store"


def client_secret(cluster: StoreCluster) -> str:
    """Return the name of the Secret that clients mount."""
    return f"{cluster.metadata.name}-client"


def tls_secret(cluster: StoreCluster) -> str:
    """Return the name of the Secret with the stores' certificate."""
    return f"{cluster.metadata.name}-tls"


def authority_name(cluster: StoreCluster) -> str:
    """Return the name of a StoreCluster's authority in cert-manager: its Issuer, Certificate and Secret."""
    return f"{cluster.metadata.name}-ca"


def metastore_secret(cluster: StoreCluster) -> str:
    """Return the name of the Secret with etcd credentials that the operator makes for the pods."""
    return f"{cluster.metadata.name}-metastore"


def host_of(cluster: StoreCluster, store: str) -> str:
    """Return the DNS name of a store's pod, valid in every namespace."""
    return f"{store}.{cluster.metadata.name}.{cluster.metadata.namespace}.svc"


def store_hosts(cluster: StoreCluster) -> list[str]:
    """Return the names and addresses that a store's certificate must be valid for."""
    wildcards = [f"{host_of(cluster, '*')}{suffix}" for suffix in ("", ".cluster.local")]
    return [*wildcards, "localhost", "127.0.0.1"]


def selector_of(cluster: StoreCluster) -> dict[str, str]:
    """Return the labels that select the pods; a StatefulSet's selector can never change."""
    return {"app.kubernetes.io/name": "evenkeel-store", STORE_CLUSTER_LABEL: cluster.metadata.name}


def labels_of(cluster: StoreCluster) -> dict[str, str]:
    """Return the labels of every object that is created for a StoreCluster."""
    name, _, value = MANAGED.partition("=")
    return {**selector_of(cluster), "app.kubernetes.io/part-of": "evenkeel", name: value}


def metadata_of(cluster: StoreCluster, name: str) -> dict[str, Any]:
    """Return the metadata of an object that is garbage-collected with its StoreCluster."""
    owner = {
        "apiVersion": cluster.api_version,
        "kind": cluster.kind,
        "name": cluster.metadata.name,
        "uid": cluster.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": cluster.metadata.namespace,
        "labels": labels_of(cluster),
        "ownerReferences": [owner],
    }


def written_object(kind: Kind, metadata: dict[str, Any], **fields: Any) -> Object:
    """Build an object of a kind."""
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **fields}

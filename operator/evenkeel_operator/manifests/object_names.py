"""What objects are called, the labels they carry, and the ports pods listen on."""

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
"""Selects whatever the operator made."""

OWNER_ANNOTATION: Final = "evenkeel.dev/owner"
"""Whose an object is that cannot have an ownerReference: the uid of a StoreCluster, or the operator's release."""

PEERS_PORT: Final = 7400
FLIGHT_PORT: Final = 7410
RAFT_HTTP_PORT: Final = 7480
STORE_HTTP_PORT: Final = 7490


def store_name(cluster: StoreCluster, number: int) -> str:
    """A store's name, which is its pod's."""
    return f"{cluster.metadata.name}-{number}"


def store_number(cluster: StoreCluster, store: str) -> int | None:
    """The number in a store's name; None where it is no name of a store of this cluster."""
    digits = store.removeprefix(f"{cluster.metadata.name}-")
    return int(digits) if digits.isdecimal() and store == store_name(cluster, int(digits)) else None


def store_names(cluster: StoreCluster) -> list[str]:
    """The stores that are wanted."""
    return [store_name(cluster, number) for number in range(cluster.spec.stores)]


def account_name(cluster: StoreCluster) -> str:
    """The ServiceAccount of the pods; not the cluster's own name, which others may use for theirs."""
    return f"{cluster.metadata.name}-store"


def client_secret(cluster: StoreCluster) -> str:
    """What clients mount."""
    return f"{cluster.metadata.name}-client"


def tls_secret(cluster: StoreCluster) -> str:
    """The stores' certificate."""
    return f"{cluster.metadata.name}-tls"


def authority_name(cluster: StoreCluster) -> str:
    """The authority of one StoreCluster, where cert-manager has it: Issuer, Certificate and Secret."""
    return f"{cluster.metadata.name}-ca"


def metastore_secret(cluster: StoreCluster) -> str:
    """What pods show to etcd, where the operator gives it to them."""
    return f"{cluster.metadata.name}-metastore"


def host_of(cluster: StoreCluster, store: str) -> str:
    """Where a pod is found, from any namespace."""
    return f"{store}.{cluster.metadata.name}.{cluster.metadata.namespace}.svc"


def store_hosts(cluster: StoreCluster) -> list[str]:
    """The names and addresses that a store's certificate has to be good for."""
    wildcards = [f"{host_of(cluster, '*')}{suffix}" for suffix in ("", ".cluster.local")]
    return [*wildcards, "localhost", "127.0.0.1"]


def selector_of(cluster: StoreCluster) -> dict[str, str]:
    """The labels by which pods are found; they can never change."""
    return {"app.kubernetes.io/name": "evenkeel-store", STORE_CLUSTER_LABEL: cluster.metadata.name}


def labels_of(cluster: StoreCluster) -> dict[str, str]:
    """The labels of everything made for a StoreCluster."""
    name, _, value = MANAGED.partition("=")
    return {**selector_of(cluster), "app.kubernetes.io/part-of": "evenkeel", name: value}


def metadata_of(cluster: StoreCluster, name: str) -> dict[str, Any]:
    """Metadata of an object that goes when the StoreCluster goes."""
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
    """An object of a kind."""
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **fields}

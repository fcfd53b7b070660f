"""The StatefulSet of a StoreCluster, its Services, its budget and its account."""

from __future__ import annotations

from typing import Any

from evenkeel.kube.object_kinds import POD_DISRUPTION_BUDGET, SERVICE, SERVICE_ACCOUNT, STATEFUL_SET, Object
from evenkeel.model.storecluster import StoreCluster
from evenkeel_operator.manifests.object_names import (
    FLIGHT_PORT,
    OWNER_ANNOTATION,
    PEERS_PORT,
    RAFT_HTTP_PORT,
    STORE_HTTP_PORT,
    account_name,
    labels_of,
    metadata_of,
    selector_of,
    written_object,
)
from evenkeel_operator.manifests.pod_settings import MetastoreAccess, PodSettings
from evenkeel_operator.manifests.store_pod import CLAIM, pod_spec

__all__ = ["budget", "service", "service_account", "stateful_set"]


def service_account(cluster: StoreCluster) -> Object:
    """Pods have an account of their own, which may do nothing and whose token they do not get."""
    metadata = metadata_of(cluster, account_name(cluster))
    return written_object(SERVICE_ACCOUNT, metadata, automountServiceAccountToken=False)


def service(cluster: StoreCluster) -> Object:
    """A name for every pod. Stores find each other before they are ready, or they never would be."""
    ports = {
        "peers": PEERS_PORT,
        "flight": FLIGHT_PORT,
        "raft-http": RAFT_HTTP_PORT,
        "store-http": STORE_HTTP_PORT,
    }
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector_of(cluster),
        "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports.items()],
    }
    return written_object(SERVICE, metadata_of(cluster, cluster.metadata.name), spec=spec)


def budget(cluster: StoreCluster, *, idle: int = 0) -> Object:
    """One pod may go at a time. One that is not ready serves nobody, and never holds up a drain of its node.

    `idle` pods are away and hold nothing. They must not use up the budget of those that do: a store that finds no
    node, or whose volume is on the node that is drained, would hold up every drain for good.
    """
    spec = {
        "maxUnavailable": 1 + idle,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector_of(cluster)},
    }
    return written_object(POD_DISRUPTION_BUDGET, metadata_of(cluster, cluster.metadata.name), spec=spec)


def stateful_set(
    cluster: StoreCluster,
    settings: PodSettings,
    metastore: MetastoreAccess,
    *,
    replicas: int,
    live: Object | None = None,
    revision: str = "",
) -> Object:
    """The stores.

    `replicas` is more than the wanted number while stores that leave still hold something. `live` is the StatefulSet as
    it is: what cannot be changed about it stays. Another `revision` lets pods be replaced, one by one.
    """
    annotations = {"evenkeel.dev/revision": revision} if revision else {}
    spec = {
        "serviceName": cluster.metadata.name,
        "replicas": replicas,
        # All at once: a quorum comes up together, and a store does not wait for one that cannot start.
        "podManagementPolicy": "Parallel",
        # Pods are replaced by `evenkeel_operator.reconcilers.pod_rollout`, which knows who else is away.
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 3,
        # `evenkeel_operator.reconcilers.volume_claims` deletes claims once they hold no data; a StatefulSet cannot know.
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "selector": {"matchLabels": selector_of(cluster)},
        "template": {
            "metadata": {"labels": labels_of(cluster), **({"annotations": annotations} if annotations else {})},
            "spec": pod_spec(cluster, settings, metastore),
        },
        "volumeClaimTemplates": [_claim(cluster)] if live is None else live["spec"]["volumeClaimTemplates"],
    }
    return written_object(STATEFUL_SET, metadata_of(cluster, cluster.metadata.name), spec=spec)


def _claim(cluster: StoreCluster) -> dict[str, Any]:
    storage = cluster.spec.storage
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": CLAIM,
            "labels": labels_of(cluster),
            "annotations": {OWNER_ANNOTATION: cluster.metadata.uid},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": str(storage.size)}},
            **({"storageClassName": storage.class_name} if storage.class_name is not None else {}),
        },
    }

"""Manifests of a StoreCluster's StatefulSet, Service, PodDisruptionBudget and ServiceAccount."""

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
    """Return the pods' ServiceAccount, which has no permissions and whose token is not mounted."""
    metadata = metadata_of(cluster, account_name(cluster))
    return written_object(SERVICE_ACCOUNT, metadata, automountServiceAccountToken=False)


def service(cluster: StoreCluster) -> Object:
    """Return the headless Service that names every pod, ready or not: stores need their peers to become ready."""
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
    """Return the budget that lets one pod at a time be evicted; a pod that is not ready may always be evicted.

    `idle` is the number of pods that are unavailable and hold no replica. They do not count against the budget: a
    store that cannot be scheduled, or whose volume is on the drained node, would otherwise block every node drain.
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
    """Return the StatefulSet of the stores.

    `replicas` exceeds `spec.stores` while surplus stores still hold replicas. `live` is the existing StatefulSet, whose
    immutable fields are kept. A new `revision` replaces the pods, one at a time.
    """
    annotations = {"evenkeel.dev/revision": revision} if revision else {}
    spec = {
        "serviceName": cluster.metadata.name,
        "replicas": replicas,
        # A quorum starts together, and no store waits for one that cannot start.
        "podManagementPolicy": "Parallel",
        # `evenkeel_operator.reconcilers.pod_rollout` replaces pods; it knows which other stores are unavailable.
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 3,
        # `evenkeel_operator.reconcilers.volume_claims` deletes claims once they hold no data.
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

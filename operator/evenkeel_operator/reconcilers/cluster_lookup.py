"""Finds what belongs to a StoreCluster: its keys, its StatefulSet, its pods, and whether its etcd is followed."""

from __future__ import annotations

from evenkeel.kube.object_kinds import NODE, POD, STATEFUL_SET, Object
from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel_operator.kube.object_applier import owned
from evenkeel_operator.kube.object_cache import Cache, Key
from evenkeel_operator.manifests.object_names import STORE_CLUSTER_LABEL, metadata_of, store_number
from evenkeel_operator.reconcilers.cluster_controllers import ClusterControllers

__all__ = ["cluster_key", "follows_epoch", "metastore_keys", "nodes_by_name", "pods_of", "stateful_set_of"]


def cluster_key(cluster: StoreCluster) -> Key:
    """Return the key of a StoreCluster in caches and queues."""
    return cluster.metadata.namespace, cluster.metadata.name


def metastore_keys(cluster: StoreCluster) -> Keys:
    """Return the names of a StoreCluster's keys in the metastore."""
    return Keys(namespace=cluster.metadata.namespace, store_cluster=cluster.metadata.name)


def pods_of(cache: Cache, cluster: StoreCluster) -> list[Object]:
    """Return the pods of the stores: other pods may have the same labels, but not the same names."""
    name = cluster.metadata.name
    return [
        pod
        for pod in cache.all(POD, cluster.metadata.namespace)
        if pod["metadata"].get("labels", {}).get(STORE_CLUSTER_LABEL) == name
        and store_number(cluster, pod["metadata"]["name"]) is not None
    ]


def stateful_set_of(cache: Cache, cluster: StoreCluster) -> Object | None:
    """Return the StatefulSet, unless it has another owner, such as a deleted StoreCluster of the same name."""
    name, namespace = cluster.metadata.name, cluster.metadata.namespace
    found = cache.get(STATEFUL_SET, namespace, name)
    return found if found is not None and owned(found, {"metadata": metadata_of(cluster, name)}) else None


def nodes_by_name(cache: Cache) -> dict[str, Object]:
    """Return the Nodes; none if the operator may not read them."""
    return {node["metadata"]["name"]: node for node in cache.all(NODE)}


def follows_epoch(controllers: ClusterControllers, cluster: StoreCluster, epoch: KeyValue | None) -> bool:
    """Whether `epoch`, read just now, is of the etcd that the controller follows; an emptied etcd has no epoch."""
    key = cluster_key(cluster)
    held = controllers.epoch(key)
    ours = held is not None and epoch is not None and epoch.mod_revision == held.mod_revision
    return ours and controllers.following(key)

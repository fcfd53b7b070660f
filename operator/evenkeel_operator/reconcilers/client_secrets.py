"""Client Secrets in other namespaces: records where they are, and deletes them."""

from __future__ import annotations

from typing import Final

from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import SECRET, STORE_CLUSTER
from evenkeel.model.storecluster import StoreCluster
from evenkeel_operator.kube.object_applier import Applier
from evenkeel_operator.kube.object_cache import Cache
from evenkeel_operator.manifests.object_names import written_object
from evenkeel_operator.manifests.secrets import client_metadata

__all__ = ["CLIENTS_ANNOTATION", "ClientSecrets"]

CLIENTS_ANNOTATION: Final = "evenkeel.dev/client-namespaces"
"""The namespaces with a StoreCluster's client Secret; the operator never lists Secrets, so it finds them by this."""


class ClientSecrets:
    """Deletes client Secrets from namespaces that the spec no longer names."""

    def __init__(self, kube: Kube, cache: Cache, applier: Applier) -> None:
        self._kube = kube
        self._cache = cache
        self._applier = applier

    async def reconcile(self, cluster: StoreCluster) -> None:
        """Record the namespaces that get a Secret, before they get it, and delete it from the others."""
        metadata = cluster.metadata
        wanted = sorted(set(cluster.spec.client_namespaces) - {metadata.namespace})
        recorded = _recorded(cluster)
        for namespace in sorted(set(recorded) - set(wanted)):
            await self._delete(cluster, namespace)
        if wanted != recorded:
            value = ",".join(wanted) or None
            patch = {"metadata": {"annotations": {CLIENTS_ANNOTATION: value}}}
            after = await self._kube.merge(STORE_CLUSTER, metadata.name, metadata.namespace, patch)
            self._cache.put(STORE_CLUSTER, after)

    async def delete(self, cluster: StoreCluster) -> None:
        """Delete all client Secrets in other namespaces."""
        for namespace in _recorded(cluster):
            await self._delete(cluster, namespace)

    async def _delete(self, cluster: StoreCluster, namespace: str) -> None:
        await self._applier.delete(written_object(SECRET, client_metadata(cluster, namespace)))


def _recorded(cluster: StoreCluster) -> list[str]:
    return [name for name in cluster.metadata.annotations.get(CLIENTS_ANNOTATION, "").split(",") if name]

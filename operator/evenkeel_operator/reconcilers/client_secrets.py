"""Client Secrets in other namespaces: where they were put, and how they are found and deleted again."""

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
"""Where a StoreCluster's client Secret was put: Secrets are never listed, so this is how they are found again."""


class ClientSecrets:
    """Deletes client Secrets from namespaces that shall no longer have one."""

    def __init__(self, kube: Kube, cache: Cache, applier: Applier) -> None:
        self._kube = kube
        self._cache = cache
        self._applier = applier

    async def keep(self, cluster: StoreCluster) -> None:
        """Note which namespaces get a Secret, before they get it, and delete it from those that shall have none."""
        metadata = cluster.metadata
        wanted = sorted(set(cluster.spec.client_namespaces) - {metadata.namespace})
        written = _noted(cluster)
        for namespace in sorted(set(written) - set(wanted)):
            await self._delete(cluster, namespace)
        if wanted != written:
            value = ",".join(wanted) or None
            patch = {"metadata": {"annotations": {CLIENTS_ANNOTATION: value}}}
            after = await self._kube.merge(STORE_CLUSTER, metadata.name, metadata.namespace, patch)
            self._cache.put(STORE_CLUSTER, after)

    async def delete(self, cluster: StoreCluster) -> None:
        """Delete all of them."""
        for namespace in _noted(cluster):
            await self._delete(cluster, namespace)

    async def _delete(self, cluster: StoreCluster, namespace: str) -> None:
        await self._applier.delete(written_object(SECRET, client_metadata(cluster, namespace)))


def _noted(cluster: StoreCluster) -> list[str]:
    return [name for name in cluster.metadata.annotations.get(CLIENTS_ANNOTATION, "").split(",") if name]

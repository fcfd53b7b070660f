"""Volume claims of stores: their owner, and when to delete them.

The StatefulSet keeps all claims (`Retain`), so scaling or deleting it by hand loses no data. The operator deletes a
claim in two steps:

    mark      The metastore says that the store was drained, that no partition names it and that it holds no replica.
              The claim gets the annotation `evenkeel.dev/emptied` with the id of the store's volume.
    delete    The mark is there, the pod is gone, the store is no longer registered and no partition names it.

A store that is desired again loses its mark before its pod is created. A deletion names the version of the claim, so an
operator that was replaced in between deletes no claim that is desired again. A lost metastore marks nothing, because
an empty one has no record of a drain.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from evenkeel.errors import ApiConflictError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import PERSISTENT_VOLUME_CLAIM, Object
from evenkeel.model.quantities import Quantity
from evenkeel.model.storecluster import StoreCluster
from evenkeel_operator.kube.object_applier import foreign
from evenkeel_operator.kube.object_cache import Cache
from evenkeel_operator.manifests.object_names import OWNER_ANNOTATION, STORE_CLUSTER_LABEL, store_name, store_number
from evenkeel_operator.manifests.store_pod import CLAIM
from evenkeel_operator.reconcilers.surplus_stores import SurplusStores

__all__ = ["EMPTIED_ANNOTATION", "VolumeClaims"]

log = logging.getLogger(__name__)

EMPTIED_ANNOTATION: Final = "evenkeel.dev/emptied"


class VolumeClaims:
    """The volume claims of all StoreClusters."""

    def __init__(self, kube: Kube, cache: Cache) -> None:
        self._kube = kube
        self._cache = cache

    def of(self, cluster: StoreCluster) -> dict[int, Object]:
        """Return the claims of a StoreCluster, by the number of the store."""
        return {number: claim for number, claim in self._named(cluster) if _belongs(cluster, claim)}

    def highest(self, cluster: StoreCluster) -> int:
        """Return the number after that of the last store whose volume may hold data."""
        used = (number for number, claim in self.of(cluster).items() if not _mark(claim) and not _terminating(claim))
        return 1 + max(used, default=-1)

    async def check(self, cluster: StoreCluster, stores: int) -> None:
        """Raise ForeignObjectError if a store would use a volume claim of another owner."""
        known = dict(self._named(cluster))
        for number in range(stores):
            name = f"{CLAIM}-{store_name(cluster, number)}"
            claim = known.get(number) or await self._kube.get(PERSISTENT_VOLUME_CLAIM, name, cluster.metadata.namespace)
            if claim is not None and not _belongs(cluster, claim):
                raise foreign(claim)

    async def record_owner(self, cluster: StoreCluster) -> None:
        """Add the owner annotation to claims of earlier releases."""
        for claim in self.of(cluster).values():
            if OWNER_ANNOTATION not in _annotations(claim):
                await self._annotate(claim, {OWNER_ANNOTATION: cluster.metadata.uid})

    async def mark(self, cluster: StoreCluster, *, replicas: int, emptied: Mapping[int, str]) -> None:
        """Mark the claims of emptied stores, and unmark those of desired stores."""
        for number, claim in self.of(cluster).items():
            wanted = emptied.get(number) if number >= replicas else None
            if wanted and _mark(claim) != wanted:
                await self._annotate(claim, {EMPTIED_ANNOTATION: wanted})
            elif number < replicas and _mark(claim):
                await self._annotate(claim, {EMPTIED_ANNOTATION: None})

    async def delete_emptied(self, cluster: StoreCluster, surplus: SurplusStores, *, pods: Collection[str]) -> None:
        """Delete the marked claims of surplus stores that are gone; `pods` are the existing pods."""
        for number, claim in self.of(cluster).items():
            if number < cluster.spec.stores or not _mark(claim) or _terminating(claim):
                continue
            if store_name(cluster, number) not in pods and surplus.ended(number):
                await self._delete(claim, "its store was drained")

    async def delete_all(self, cluster: StoreCluster) -> None:
        """Delete all claims of a StoreCluster whose tables and pods are gone."""
        for claim in self.of(cluster).values():
            if not _terminating(claim):
                await self._delete(claim, "its StoreCluster is being deleted")

    async def grow(self, cluster: StoreCluster) -> None:
        """Request larger volumes if the spec asks for them; the StatefulSet's template is immutable."""
        wanted = cluster.spec.storage.size
        for claim in self.of(cluster).values():
            requested = claim["spec"].get("resources", {}).get("requests", {}).get("storage", "0")
            if Quantity(str(requested)).value < wanted.value:
                name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
                patch = {"spec": {"resources": {"requests": {"storage": str(wanted)}}}}
                self._cache.put(
                    PERSISTENT_VOLUME_CLAIM, await self._kube.merge(PERSISTENT_VOLUME_CLAIM, name, namespace, patch)
                )
                log.info("requested growth of volume claim %s/%s from %s to %s", namespace, name, requested, wanted)

    def _named(self, cluster: StoreCluster) -> Iterator[tuple[int, Object]]:
        """Return the watched claims that the StatefulSet's pods would use, whatever their owner."""
        for claim in self._cache.all(PERSISTENT_VOLUME_CLAIM, cluster.metadata.namespace):
            prefix, _, store = claim["metadata"]["name"].partition("-")
            number = store_number(cluster, store)
            if prefix == CLAIM and number is not None:
                yield number, claim

    async def _annotate(self, claim: Object, annotations: Mapping[str, str | None]) -> None:
        metadata = claim["metadata"]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": dict(annotations)}}
        try:
            after = await self._kube.merge(PERSISTENT_VOLUME_CLAIM, metadata["name"], metadata["namespace"], patch)
        except ApiConflictError as error:
            raise ApiConflictError(f"{error}; retrying", status=error.status) from error
        self._cache.put(PERSISTENT_VOLUME_CLAIM, after)

    async def _delete(self, claim: Object, why: str) -> None:
        metadata = claim["metadata"]
        if await self._kube.delete_exactly(claim):
            log.info("deleted volume claim %s/%s: %s", metadata["namespace"], metadata["name"], why)


def _belongs(cluster: StoreCluster, claim: Object) -> bool:
    """Whether this StoreCluster owns the claim; claims of releases before the annotation have only the label."""
    owner = _annotations(claim).get(OWNER_ANNOTATION)
    labels = claim["metadata"].get("labels") or {}
    labelled = labels.get(STORE_CLUSTER_LABEL) == cluster.metadata.name
    return labelled if owner is None else owner == cluster.metadata.uid


def _mark(claim: Object) -> str:
    return _annotations(claim).get(EMPTIED_ANNOTATION, "")


def _terminating(claim: Object) -> bool:
    return "deletionTimestamp" in claim["metadata"]


def _annotations(claim: Object) -> dict[str, str]:
    return claim["metadata"].get("annotations") or {}

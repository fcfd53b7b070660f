"""The volume claims of stores: whose they are, and when one is deleted.

The StatefulSet keeps all claims (`Retain`), so that neither scaling nor deleting it by hand loses anything. The
operator itself deletes a claim, in two steps:

    mark      while the metastore says that the store was told to be emptied, that no partition names it and that it
              holds no replica, the claim gets the annotation `evenkeel.dev/emptied` with the id of the store's volume
    delete    the mark is there, the pod is gone, the store is no longer registered and still nothing names it

A store that is wanted again loses its mark before its pod is made. A deletion names the version of the claim that it
was decided on, so that an operator that was replaced in between deletes nothing that is wanted again. The metastore
alone never suffices: an empty one, as after its loss, marks nothing.
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

__all__ = ["EMPTIED_ANNOTATION", "Volumes"]

log = logging.getLogger(__name__)

EMPTIED_ANNOTATION: Final = "evenkeel.dev/emptied"


class Volumes:
    """The claims of all StoreClusters."""

    def __init__(self, kube: Kube, cache: Cache) -> None:
        self._kube = kube
        self._cache = cache

    def of(self, cluster: StoreCluster) -> dict[int, Object]:
        """By the numbers of its stores, the claims that belong to a StoreCluster."""
        return {number: claim for number, claim in self._named(cluster) if _belongs(cluster, claim)}

    def highest(self, cluster: StoreCluster) -> int:
        """The number after the last store whose volume may hold something."""
        used = (number for number, claim in self.of(cluster).items() if not _mark(claim) and not _going(claim))
        return 1 + max(used, default=-1)

    async def check(self, cluster: StoreCluster, stores: int) -> None:
        """ForeignObjectError where a store would be given a volume that was not made for this StoreCluster."""
        known = dict(self._named(cluster))
        for number in range(stores):
            name = f"{CLAIM}-{store_name(cluster, number)}"
            claim = known.get(number) or await self._kube.get(PERSISTENT_VOLUME_CLAIM, name, cluster.metadata.namespace)
            if claim is not None and not _belongs(cluster, claim):
                raise foreign(claim)

    async def own(self, cluster: StoreCluster) -> None:
        """Write whose they are into claims of earlier releases, which had no such annotation."""
        for claim in self.of(cluster).values():
            if OWNER_ANNOTATION not in _annotations(claim):
                await self._annotate(claim, {OWNER_ANNOTATION: cluster.metadata.uid})

    async def mark(self, cluster: StoreCluster, *, replicas: int, emptied: Mapping[int, str]) -> None:
        """Mark the claims of stores that were emptied, and take the mark from those that are wanted."""
        for number, claim in self.of(cluster).items():
            wanted = emptied.get(number) if number >= replicas else None
            if wanted and _mark(claim) != wanted:
                await self._annotate(claim, {EMPTIED_ANNOTATION: wanted})
            elif number < replicas and _mark(claim):
                await self._annotate(claim, {EMPTIED_ANNOTATION: None})

    async def delete_emptied(self, cluster: StoreCluster, census: SurplusStores, *, pods: Collection[str]) -> None:
        """Delete marked claims of stores beyond the wanted number that are gone; `pods` are those that are there."""
        for number, claim in self.of(cluster).items():
            if number < cluster.spec.stores or not _mark(claim) or _going(claim):
                continue
            if store_name(cluster, number) not in pods and census.ended(number):
                await self._delete(claim, "its store was emptied")

    async def delete_all(self, cluster: StoreCluster) -> None:
        """Delete the claims of a StoreCluster that is being deleted, when its tables and pods are gone."""
        for claim in self.of(cluster).values():
            if not _going(claim):
                await self._delete(claim, "its StoreCluster is deleted")

    async def grow(self, cluster: StoreCluster) -> None:
        """Ask for larger volumes where larger ones are wanted; a StatefulSet cannot do it by itself."""
        wanted = cluster.spec.storage.size
        for claim in self.of(cluster).values():
            asked = claim["spec"].get("resources", {}).get("requests", {}).get("storage", "0")
            if Quantity(str(asked)).value < wanted.value:
                name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
                patch = {"spec": {"resources": {"requests": {"storage": str(wanted)}}}}
                self._cache.put(
                    PERSISTENT_VOLUME_CLAIM, await self._kube.merge(PERSISTENT_VOLUME_CLAIM, name, namespace, patch)
                )
                log.info("volume %s/%s grows from %s to %s", namespace, name, asked, wanted)

    def _named(self, cluster: StoreCluster) -> Iterator[tuple[int, Object]]:
        """The claims that the StatefulSet's pods would use, whoever they belong to, as far as they are watched."""
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
            raise ApiConflictError(f"{error}; it is looked at again", status=error.status) from error
        self._cache.put(PERSISTENT_VOLUME_CLAIM, after)

    async def _delete(self, claim: Object, why: str) -> None:
        metadata = claim["metadata"]
        if await self._kube.delete_exactly(claim):
            log.info("claim %s/%s is deleted: %s", metadata["namespace"], metadata["name"], why)


def _belongs(cluster: StoreCluster, claim: Object) -> bool:
    """Whether the claim was made for this StoreCluster; releases before the annotation marked claims by label alone."""
    owner = _annotations(claim).get(OWNER_ANNOTATION)
    labels = claim["metadata"].get("labels") or {}
    labelled = labels.get(STORE_CLUSTER_LABEL) == cluster.metadata.name
    return labelled if owner is None else owner == cluster.metadata.uid


def _mark(claim: Object) -> str:
    return _annotations(claim).get(EMPTIED_ANNOTATION, "")


def _going(claim: Object) -> bool:
    return "deletionTimestamp" in claim["metadata"]


def _annotations(claim: Object) -> dict[str, str]:
    return claim["metadata"].get("annotations") or {}

"""Steps that bring the objects of a StoreCluster to their desired state; StoreClusterReconciler runs them in order."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from evenkeel.errors import EvenkeelError
from evenkeel.kube.object_kinds import STORE_CLUSTER, Object
from evenkeel.metastore.operator_epoch import FencedMetastore
from evenkeel.model.storecluster import StoreCluster
from evenkeel.reconcile.readiness import Problem
from evenkeel_operator.identity.authority import token
from evenkeel_operator.identity.metastore_connections import Credentials
from evenkeel_operator.identity.store_certificates import PublishedCertificate, seed_name
from evenkeel_operator.kube.object_applier import Applied
from evenkeel_operator.manifests import secrets, stateful_set
from evenkeel_operator.manifests.object_names import store_name
from evenkeel_operator.manifests.pod_settings import MetastoreAccess
from evenkeel_operator.reconcilers.client_secrets import ClientSecrets
from evenkeel_operator.reconcilers.cluster_lookup import (
    cluster_key,
    follows_epoch,
    metastore_keys,
    nodes_by_name,
    pods_of,
    stateful_set_of,
)
from evenkeel_operator.reconcilers.cordons import EXTEND_SECONDS, Cordons, on_cordoned_nodes
from evenkeel_operator.reconcilers.operator_context import OperatorContext
from evenkeel_operator.reconcilers.pod_conditions import ready_pod
from evenkeel_operator.reconcilers.pod_rollout import next_to_replace, outdated
from evenkeel_operator.reconcilers.surplus_stores import SurplusStores, idle_stores, read_surplus_stores
from evenkeel_operator.reconcilers.volume_claims import VolumeClaims

__all__ = ["RESYNC_SECONDS", "SOON_SECONDS", "ClusterPass", "StoreClusterObjects"]

log = logging.getLogger(__name__)

SOON_SECONDS: Final = 2.0
"""Time to the next reconciliation while something is expected to change."""
RESYNC_SECONDS: Final = 300.0
_ROLLOUT_SECONDS: Final = 5.0
"""Time to the next reconciliation during a rollout: no event reports that the disruption budget allows an eviction."""


class ClusterPass(msgspec.Struct, kw_only=True):
    """One reconciliation of a StoreCluster: what its steps have found so far."""

    cluster: StoreCluster
    subject: Object
    problems: list[Problem] = msgspec.field(default_factory=list)
    requeue_after: float = RESYNC_SECONDS
    access: MetastoreAccess | None = None
    credentials: Credentials = msgspec.field(default_factory=dict)
    live: Object | None = None
    """The StatefulSet as it was before this reconciliation."""
    certificate: PublishedCertificate = PublishedCertificate()
    replicas: int = 0
    """The number of pods: `spec.stores`, and surplus stores that still hold replicas."""
    surplus: SurplusStores | None = None
    """What the metastore says about surplus stores; None if there are none, or if it cannot be trusted now."""
    idle: list[str] = msgspec.field(default_factory=list)

    def requeue(self, seconds: float) -> None:
        """Reconcile again in so many seconds at the latest."""
        self.requeue_after = min(self.requeue_after, seconds)


class StoreClusterObjects:
    """The steps; each takes the current pass and finds out by itself whether there is anything to do."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._clients = ClientSecrets(context.kube, context.cache, context.applier)
        self._volumes = VolumeClaims(context.kube, context.cache)
        self.cordons = Cordons()

    async def find_metastore(self, current: ClusterPass) -> None:
        """Find out how pods reach etcd, and the StatefulSet as it is."""
        current.access, current.credentials = await self._context.metastores.for_pods(current.cluster)
        current.live = stateful_set_of(self._context.cache, current.cluster)

    async def record_client_namespaces(self, current: ClusterPass) -> None:
        """Record where client Secrets go, before they are applied; delete those that are no longer desired."""
        await self._clients.reconcile(current.cluster)

    async def apply_certificates(self, current: ClusterPass) -> None:
        """Apply what issues the stores' certificate, and read the result."""
        certificates = self._context.certificates
        await certificates.check(current.cluster)
        for wanted in certificates.objects(current.cluster):
            await self._apply(current, wanted)
        current.certificate = await certificates.published(current.cluster)

    async def apply_secrets(self, current: ClusterPass) -> None:
        """Apply the Secrets for etcd and for clients."""
        cluster = current.cluster
        if current.credentials:
            await self._apply(current, secrets.metastore_copy(cluster, current.credentials))
        access_token = token(self._context.seed, seed_name(cluster))
        for wanted in secrets.client_secrets(cluster, token=access_token, authority=current.certificate.authority):
            await self._apply(current, wanted)

    async def apply_services(self, current: ClusterPass) -> None:
        """Apply the ServiceAccount and the headless Service."""
        await self._apply(current, stateful_set.service_account(current.cluster))
        await self._apply(current, stateful_set.service(current.cluster))

    async def count_pods(self, current: ClusterPass) -> None:
        """Determine the number of pods; a surplus store keeps its pod while it may hold replicas.

        The live StatefulSet is no evidence that a store is empty: a user may have scaled or deleted it.
        """
        cluster, live = current.cluster, current.live
        running = int(live["spec"].get("replicas", 1)) if live is not None else 0
        highest = max(running, self._volumes.highest(cluster))
        marked = max(self._volumes.of(cluster), default=-1) >= cluster.spec.stores
        if highest <= cluster.spec.stores and not marked:
            current.replicas = cluster.spec.stores
            return
        current.replicas = max(highest, cluster.spec.stores)
        # While etcd is not followed, is another one, or is being adopted, it does not list all replicas.
        if self._context.controllers.following(cluster_key(cluster)):
            await self._count_surplus(current, highest)

    async def check_volumes(self, current: ClusterPass) -> None:
        """Refuse volume claims of another owner; record the owner of claims of earlier releases."""
        await self._volumes.check(current.cluster, current.replicas)
        await self._volumes.record_owner(current.cluster)

    async def mark_emptied_volumes(self, current: ClusterPass) -> None:
        """Mark the claims of emptied stores, and unmark those of stores that are desired again."""
        emptied = current.surplus.emptied(current.replicas) if current.surplus is not None else {}
        await self._volumes.mark(current.cluster, replicas=current.replicas, emptied=emptied)

    async def apply_stateful_set(self, current: ClusterPass) -> None:
        """Apply the StatefulSet."""
        assert current.access is not None
        wanted = stateful_set.stateful_set(
            current.cluster,
            self._context.settings,
            current.access,
            replicas=current.replicas,
            live=current.live,
            revision=current.certificate.revision,
        )
        await self._apply(current, wanted, current.live, watched=True)

    async def apply_budget(self, current: ClusterPass) -> None:
        """Apply the PodDisruptionBudget; unavailable pods that hold no replica do not count against it."""
        current.idle = self._idle(current)
        await self._apply(current, stateful_set.budget(current.cluster, idle=len(current.idle)))

    async def delete_emptied_volumes(self, current: ClusterPass) -> None:
        """Delete the marked claims of surplus stores whose pods are gone."""
        if current.surplus is not None:
            pods = {pod["metadata"]["name"] for pod in pods_of(self._context.cache, current.cluster)}
            await self._volumes.delete_emptied(current.cluster, current.surplus, pods=pods)

    async def replace_outdated_pod(self, current: ClusterPass) -> None:
        """Evict the next pod that does not match the StatefulSet's template."""
        pods = pods_of(self._context.cache, current.cluster)
        pod = next_to_replace(current.live, pods, idle=current.idle)
        if pod is not None and await self._context.kube.evict(pod):
            log.info("evicted pod %s to replace it", pod["metadata"]["name"])
        if outdated(current.live, pods):
            current.requeue(_ROLLOUT_SECONDS)
        elif current.replicas > current.cluster.spec.stores:
            current.requeue(SOON_SECONDS)

    async def inhibit_leadership_on_cordoned_nodes(self, current: ClusterPass) -> None:
        """Have stores on cordoned nodes hand over their leaderships and lead nothing."""
        context, cluster = self._context, current.cluster
        ready = filter(ready_pod, pods_of(context.cache, cluster))
        cordoned = on_cordoned_nodes(ready, nodes_by_name(context.cache))
        if (epoch := context.controllers.epoch(cluster_key(cluster))) is not None:
            metastore = FencedMetastore(await context.metastores.of(cluster), epoch)
            await self.cordons.reconcile(metastore, metastore_keys(cluster), cordoned)
        if cordoned:
            current.requeue(EXTEND_SECONDS)

    async def grow_volumes(self, current: ClusterPass) -> None:
        """Request larger volumes if the spec asks for them."""
        await self._volumes.grow(current.cluster)

    async def _count_surplus(self, current: ClusterPass, highest: int) -> None:
        """Let surplus stores go that hold nothing, as the metastore confirms."""
        context, cluster = self._context, current.cluster
        try:
            metastore = await context.metastores.of(cluster)
            surplus = await read_surplus_stores(metastore, cluster, highest)
            enough = surplus.to_run()
            epoch = await metastore.get(metastore_keys(cluster).epoch)
        except EvenkeelError as error:
            log.warning("StoreCluster %s keeps its %d pods for now: %s", cluster.key, highest, error)
            return
        # A store that became desired again during this reconciliation may have been given replicas.
        if self._is_newest(cluster) and follows_epoch(context.controllers, cluster, epoch):
            current.replicas, current.surplus = enough, surplus

    def _is_newest(self, cluster: StoreCluster) -> bool:
        subject = self._context.cache.get(STORE_CLUSTER, *cluster_key(cluster)) or {"metadata": {}}
        return bool(subject["metadata"].get("generation") == cluster.metadata.generation)

    def _idle(self, current: ClusterPass) -> list[str]:
        """Return unavailable stores that hold nothing; none while it is unknown what stores hold."""
        context, cluster = self._context, current.cluster
        ready = {pod["metadata"]["name"] for pod in pods_of(context.cache, cluster) if ready_pod(pod)}
        away = {store_name(cluster, number) for number in range(current.replicas)} - ready
        known = context.controllers.assignments(cluster_key(cluster)) if away else None
        return idle_stores(away, known) if known is not None else []

    async def _apply(
        self, current: ClusterPass, wanted: Object, live: Object | None = None, *, watched: bool = False
    ) -> None:
        result = await self._context.applier.apply(wanted, live, watched=watched)
        if result is not Applied.UNCHANGED:
            metadata = wanted["metadata"]
            log.info(
                "%s %s/%s %s", wanted["kind"], metadata["namespace"], metadata["name"], result,
                extra={"store_cluster": current.cluster.key},
            )  # fmt: skip

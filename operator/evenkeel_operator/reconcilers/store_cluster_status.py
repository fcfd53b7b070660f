"""The operator's part of a StoreCluster's status: pods, zones, and problems with the API server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from evenkeel.controller.table_reconciler import cluster_paused
from evenkeel.kube.object_kinds import STORE_CLUSTER, Object
from evenkeel.model.conditions import timestamp
from evenkeel.model.storecluster import StoreCluster, StoreClusterSpec, StoreClusterStatus
from evenkeel.reconcile.readiness import Problem
from evenkeel_operator.kube.kube_status_writer import KubeStatusWriter
from evenkeel_operator.kube.object_cache import Cache, Key
from evenkeel_operator.kube.resource_reader import Reader
from evenkeel_operator.manifests.object_names import selector_of
from evenkeel_operator.reconcilers.cluster_controllers import ClusterControllers
from evenkeel_operator.reconcilers.cluster_lookup import cluster_key, nodes_by_name, pods_of, stateful_set_of
from evenkeel_operator.reconcilers.kube_resources import status_document
from evenkeel_operator.reconcilers.pod_conditions import PodFacts, pod_problem, ready_pod, with_pod_facts, with_problems
from evenkeel_operator.reconcilers.pod_rollout import outdated
from evenkeel_operator.reconcilers.store_zones import found_zones, with_zones, zones_from

__all__ = ["StoreClusterStatuses"]

_REPORTED_PODS = 5
_REPORTED_PROBLEMS = 3

_Zoned = tuple[StoreClusterSpec, dict[str, str], StoreClusterSpec]
"""A spec, zones, and the spec with these zones: cached, because there may be thousands of stores."""


class StoreClusterStatuses:
    """Knows the pods and zones of StoreClusters, and publishes them."""

    def __init__(
        self,
        cache: Cache,
        statuses: KubeStatusWriter,
        reader: Reader,
        controllers: ClusterControllers,
        *,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cache = cache
        self._statuses = statuses
        self._reader = reader
        self._controllers = controllers
        self._wall_clock = wall_clock
        self._facts: dict[Key, PodFacts] = {}
        self._zones: dict[Key, dict[str, str]] = {}
        self._zoned: dict[Key, _Zoned] = {}

    # Zones

    def observe_zones(self, cluster: StoreCluster) -> None:
        """Note the zones of the nodes that the pods are on; the controller is notified of a change."""
        key = cluster_key(cluster)
        found = found_zones(cluster, pods_of(self._cache, cluster), nodes_by_name(self._cache))
        zones = {**self._zones.get(key, {}), **found}
        if zones != self._zones.get(key):
            self._zones[key] = zones
            self._controllers.notify(key)

    def with_node_zones(self, cluster: StoreCluster) -> StoreCluster:
        """Return the StoreCluster with the zones of its nodes, which plans are made for."""
        key = cluster_key(cluster)
        zones = self._zones.setdefault(key, {})
        spec, its_zones, zoned = self._zoned.get(key, (None, None, None))
        if spec is not cluster.spec or its_zones is not zones or zoned is None:
            zoned = with_zones(cluster, zones).spec
            self._zoned[key] = (cluster.spec, zones, zoned)
        return cluster.model_copy(update={"spec": zoned})

    # Statuses

    def describe(self, cluster: StoreCluster, status: StoreClusterStatus) -> StoreClusterStatus:
        """Add the state of the pods to the controller's status of a StoreCluster."""
        facts = self._facts.get(cluster_key(cluster)) or self._pod_facts(cluster)
        now = timestamp(self._wall_clock())
        return with_pod_facts(cluster, status, facts, before=self._published(cluster), now=now)

    def publish(self, cluster: StoreCluster, problems: Iterable[Problem]) -> None:
        """Publish the state of the pods, and the problems of this reconciliation."""
        key = cluster_key(cluster)
        subject = self._cache.get(STORE_CLUSTER, *key)
        if subject is None:
            return
        facts = self._pod_facts(cluster)
        self._facts[key] = msgspec.structs.replace(
            facts, paused=cluster_paused(cluster), problems=(*problems, *facts.problems)
        )
        before = self._published(cluster) or StoreClusterStatus(observed_generation=cluster.metadata.generation)
        status = self.describe(cluster, self._controllers.last_status(key) or before)
        self._statuses.set(subject, status_document(status))

    def publish_problem(self, subject: Object, problem: Problem) -> None:
        """Add a problem to the status of an object whose spec may be invalid."""
        generation, now = subject["metadata"].get("generation", 0), timestamp(self._wall_clock())
        status = with_problems(self._statuses.of(subject), [problem], generation=generation, now=now)
        self._statuses.set(subject, status)

    def all_ready(self, cluster: StoreCluster) -> bool:
        """Whether as many pods as desired were ready when the status was last published."""
        return self._facts[cluster_key(cluster)].ready >= cluster.spec.stores

    def forget(self, key: Key) -> None:
        """Forget a StoreCluster that is gone."""
        for known in (self._facts, self._zones, self._zoned):
            known.pop(key, None)

    def _published(self, cluster: StoreCluster) -> StoreClusterStatus | None:
        subject = self._cache.get(STORE_CLUSTER, *cluster_key(cluster))
        return None if subject is None else self._reader.read(StoreCluster, subject).status

    def _pod_facts(self, cluster: StoreCluster) -> PodFacts:
        pods = pods_of(self._cache, cluster)
        problems = [problem for pod in pods if (problem := pod_problem(pod)) is not None]
        unready = [pod["metadata"]["name"] for pod in pods if not ready_pod(pod)]
        return PodFacts(
            selector=",".join(f"{name}={value}" for name, value in selector_of(cluster).items()),
            pods=len(pods),
            ready=len(pods) - len(unready),
            zones_from=zones_from(cluster, self._zones.get(cluster_key(cluster), {})),
            waiting=f"not ready: {', '.join(unready[:_REPORTED_PODS])}" if unready else "",
            outdated=len(outdated(stateful_set_of(self._cache, cluster), pods)),
            problems=tuple(problems[:_REPORTED_PROBLEMS]),
        )

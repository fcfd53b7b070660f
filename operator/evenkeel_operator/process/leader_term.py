"""One replica's term as leader: fills the cache, watches, runs reconcilers and controllers, and sweeps periodically."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from evenkeel.errors import ApiForbiddenError, FencedError, KubernetesError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.kubeconfig import load_configuration
from evenkeel.kube.object_kinds import STORE_CLUSTER, Kind, Object
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.model.conditions import Reason
from evenkeel.reconcile.readiness import Problem
from evenkeel.runtime.work_queue import Workers, WorkQueue
from evenkeel_operator.identity.authority import Authority
from evenkeel_operator.identity.metastore_connections import Metastores
from evenkeel_operator.identity.store_certificates import (
    CertificateSource,
    CertManager,
    NoCertificates,
    OperatorAuthorities,
)
from evenkeel_operator.kinds import OWNER_FIELDS, QUIET_CONDITIONS, Enqueue, effects_of, watched_kinds
from evenkeel_operator.kube.event_recorder import EventRecorder
from evenkeel_operator.kube.kube_status_writer import KubeStatusWriter
from evenkeel_operator.kube.object_applier import Applier
from evenkeel_operator.kube.object_cache import Cache, Key, key_of, version_of
from evenkeel_operator.kube.resource_reader import Reader
from evenkeel_operator.kube.watches import Watch, Watches
from evenkeel_operator.manifests import secrets
from evenkeel_operator.manifests.object_names import MANAGED
from evenkeel_operator.manifests.pod_settings import CertManagerSettings, PodSettings
from evenkeel_operator.process.operator_health import OperatorHealth
from evenkeel_operator.reconcilers.cluster_controllers import ClusterControllers
from evenkeel_operator.reconcilers.kube_resources import KubeResources
from evenkeel_operator.reconcilers.operator_context import OperatorContext, caching_applier
from evenkeel_operator.reconcilers.store_cluster_status import StoreClusterStatuses

__all__ = ["LeaderTerm", "LeaderTermSettings"]

log = logging.getLogger(__name__)

_WATCH_LAG_SECONDS: Final = 15.0
"""Time that a watch may lag behind a listing."""
_FLUSH_SECONDS: Final = 5.0


class LeaderTermSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a leader."""

    identity: str
    own_namespace: str
    namespaces: tuple[str, ...] = ()
    """The namespaces to serve; empty means all."""
    kubeconfig: Path | None = None
    nodes: bool = True
    """Whether the operator may read Nodes, for zones and cordons."""
    seed_secret: str
    """Secret with the seed of certificates and access tokens."""
    etcd: EtcdSettings
    etcd_service: str = ""
    """Service of the bundled etcd, if the operator issues its certificates."""
    etcd_note: str = ""
    """ConfigMap that tells members of the bundled etcd that the cluster has been formed."""
    pods: PodSettings
    cert_manager: CertManagerSettings | None = None
    """Settings for cert-manager, if it issues the store certificates in place of the operator."""
    folder: Path
    """Folder for certificates as files."""
    sweep_seconds: float = 300.0


class LeaderTerm:
    """Runs until cancelled, fenced, or cut off from the API server."""

    def __init__(
        self,
        kube: Kube,
        settings: LeaderTermSettings,
        health: OperatorHealth,
        *,
        seed: bytes,
        metastores: Metastores,
        etcd_authority: Authority | None = None,
    ) -> None:
        """`etcd_authority` signs the certificates of the bundled etcd."""
        self._kube = kube
        self._settings = settings
        self._etcd_authority = etcd_authority
        self._health = health
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._swept = False
        self._kinds = watched_kinds(nodes=settings.nodes)
        self._cache = Cache(OWNER_FIELDS, self._changed)
        self._recorder = EventRecorder(kube, instance=settings.identity, quiet=QUIET_CONDITIONS)
        self._statuses = KubeStatusWriter(kube, self._cache, on_written=self._recorder.status_written)
        self._reader = Reader(self._statuses)
        self._controllers = ClusterControllers(
            holder=settings.identity, metastore=metastores.of, resources=self._resources, fenced=self._fenced
        )
        self._context = OperatorContext(
            kube=kube,
            cache=self._cache,
            statuses=self._statuses,
            reader=self._reader,
            applier=caching_applier(kube, self._cache),
            settings=settings.pods,
            seed=seed,
            certificates=self._certificate_source(seed),
            metastores=metastores,
            controllers=self._controllers,
            cluster_statuses=StoreClusterStatuses(self._cache, self._statuses, self._reader, self._controllers),
        )
        self._queues: dict[Kind, WorkQueue[Key]] = {}
        self._workers: list[Workers[Key]] = []
        for watched in self._kinds:
            if (reconciled := watched.reconciled) is not None:
                queue = self._queues[watched.kind] = WorkQueue[Key]()
                reconcile = reconciled.reconciler(self._context).reconcile
                self._workers.append(Workers(queue, reconcile, subject=reconciled.log_field))

    # Health and metrics

    def oldest(self) -> float:
        """Return for how many seconds the longest-waiting key has been due."""
        return max(queue.oldest() for queue in self._queues.values())

    def figures(self) -> dict[str, float]:
        """Return the values of metrics, by name."""
        counts = {found.reconciled.gauge: self._cache.count(found.kind) for found in self._kinds if found.reconciled}
        return {
            **counts,
            "dropped_tables": self._controllers.dropped(),
            "queued": sum(map(len, self._queues.values())),
            "waiting_statuses": len(self._statuses),
            "written_statuses": self._statuses.written,
            "failed_looks": sum(workers.failures for workers in self._workers),
            "controllers": len(self._controllers),
            "busy_controllers": self._controllers.busy(),
            "troubled_controllers": len(self._controllers.problems()),
        }

    # Running

    async def run(self) -> None:
        """Lead; FencedError when another operator leads, KubernetesError when the API server is lost for good."""
        self._health.oldest = self.oldest
        try:
            await self._certify_etcd()
            await self._sweep_once()
        except ApiForbiddenError as error:
            await self._publish_forbidden(error)
            raise
        try:
            async with asyncio.TaskGroup() as tasks:
                for work in (
                    self._watch(),
                    self._sweep(),
                    self._statuses.run(),
                    self._recorder.run(),
                    *(workers.run() for workers in self._workers),
                    self._until_fenced(),
                ):
                    tasks.create_task(work)
        finally:
            await self._controllers.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._statuses.flush(), _FLUSH_SECONDS)

    async def _publish_forbidden(self, error: ApiForbiddenError) -> None:
        """Publish a missing permission in the StoreClusters that could be listed."""
        problem = Problem(Reason.FORBIDDEN, f"the operator lacks a permission: {error}")
        for subject in self._cache.all(STORE_CLUSTER):
            self._context.cluster_statuses.publish_problem(subject, problem)
        await self._statuses.flush()

    def _resources(self, key: Key) -> KubeResources:
        return KubeResources(
            self._kube,
            self._cache,
            self._statuses,
            self._reader,
            cluster=key,
            with_node_zones=self._context.cluster_statuses.with_node_zones,
            describe=self._context.cluster_statuses.describe,
        )

    def _certificate_source(self, seed: bytes) -> CertificateSource:
        settings = self._settings
        if not settings.pods.tls:
            return NoCertificates()
        if settings.cert_manager is not None:
            return CertManager(self._kube, settings.cert_manager)
        return OperatorAuthorities(seed, wall_clock=lambda: datetime.now(UTC))

    def _fenced(self, error: FencedError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    async def _until_fenced(self) -> None:
        await self._ended

    async def _certify_etcd(self) -> None:
        """Apply the Secret with the certificate of the bundled etcd."""
        authority = self._etcd_authority
        if authority is None:
            return
        name, namespace = self._settings.etcd_service, self._settings.own_namespace
        bases = [f"{name}.{namespace}.svc{suffix}" for suffix in ("", ".cluster.local")]
        hosts = [*(f"*.{base}" for base in bases), *bases, "localhost", "127.0.0.1"]
        issued = authority.issue("etcd", hosts, now=datetime.now(UTC))
        label, _, value = MANAGED.partition("=")
        wanted = secrets.etcd_certificate(
            f"{name}-tls",
            namespace,
            labels={label: value},
            authority=authority.certificate,
            certificate=issued.certificate,
            key=issued.key,
        )
        await Applier(self._kube).apply(wanted)

    # Watching

    async def _watch(self) -> None:
        watches = Watches(
            [Watch(watched.kind, watched.selector) for watched in self._kinds],
            namespaces=self._settings.namespaces,
            configuration=lambda: load_configuration(self._settings.kubeconfig),
            deliver=self._deliver,
        )
        await watches.run()

    def _deliver(self, kind: Kind, gone: bool, subject: Object) -> None:
        self._health.saw_event(kind)
        subject.setdefault("apiVersion", kind.api_version)
        subject.setdefault("kind", kind.name)
        if gone:
            self._cache.remove(kind, subject)
        else:
            self._cache.put(kind, subject)

    def _changed(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        """Enqueue what a change in the cache affects."""
        if after is None and before is not None:
            self._reader.forget(before)
        for effect in effects_of(self._cache, kind, before, after):
            if isinstance(effect, Enqueue):
                self._queues[effect.kind].add(effect.key)
            else:
                self._controllers.notify(effect.cluster, effect.table)

    # Sweeping

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_seconds)
            try:
                await self._certify_etcd()
                await self._sweep_once()
            except KubernetesError as error:
                log.warning("the sweep failed; retrying in %g s: %s", self._settings.sweep_seconds, error)

    async def _sweep_once(self) -> None:
        """List all objects, in case a watch has missed a change, and reconcile all of them."""
        first, self._swept = not self._swept, True
        missed = 0
        for watched in self._kinds:
            for namespace in self._listed_namespaces(watched.kind):
                listing = await self._kube.list(watched.kind, namespace, selector=watched.selector)
                if not first:
                    missed += await self._missed(watched.kind, listing.items)
                self._cache.relist(watched.kind, listing.items, version=listing.version, namespace=namespace)
        self._health.swept(missed=missed)
        self._context.applier.forget()
        for kind, queue in self._queues.items():
            queue.add_all(map(key_of, self._cache.all(kind)))

    def _listed_namespaces(self, kind: Kind) -> Sequence[str]:
        return self._settings.namespaces if kind.namespaced and self._settings.namespaces else ("",)

    async def _missed(self, kind: Kind, listed: Sequence[Object]) -> int:
        """Return how many changes no watch has delivered, even after some time."""
        newer = [subject for subject in listed if self._is_stale(kind, subject)]
        if newer:
            await asyncio.sleep(_WATCH_LAG_SECONDS)
        return sum(self._is_stale(kind, subject) for subject in newer)

    def _is_stale(self, kind: Kind, subject: Object) -> bool:
        known = self._cache.get(kind, *key_of(subject))
        return known is None or version_of(known) < version_of(subject)

"""One replica's time as leader: caches filled, watches and controllers running, everything swept now and then."""

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
from evenkeel.kube.object_kinds import (
    NODE,
    PARTITION_ASSIGNMENT,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    REBALANCE_PLAN,
    STATEFUL_SET,
    STORE_CLUSTER,
    TABLE,
    Kind,
    Object,
)
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.model.conditions import Reason, timestamp
from evenkeel.reconcile.partition_status import Problem
from evenkeel_operator.identity.authority import Authority
from evenkeel_operator.identity.metastore_connections import Metastores
from evenkeel_operator.identity.store_certificates import (
    CertificateSource,
    CertManager,
    NoCertificates,
    OperatorAuthorities,
)
from evenkeel_operator.kube.object_applier import Applier
from evenkeel_operator.kube.event_recorder import Recorder
from evenkeel_operator.kube.object_cache import Cache, Key, key_of, version_of
from evenkeel_operator.kube.queue import WorkQueue
from evenkeel_operator.kube.resource_reader import Reader
from evenkeel_operator.kube.kube_status_writer import StatusWriter
from evenkeel_operator.kube.watches import Watch, Watches
from evenkeel_operator.manifests import secrets
from evenkeel_operator.manifests.object_names import MANAGED, STORE_CLUSTER_LABEL
from evenkeel_operator.manifests.pod_settings import CertManagerSettings, PodSettings
from evenkeel_operator.process.operator_health import OperatorHealth
from evenkeel_operator.reconcilers.cluster_controllers import Controllers
from evenkeel_operator.reconcilers.kube_resources import KubeResources
from evenkeel_operator.reconcilers.pod_conditions import with_problems
from evenkeel_operator.reconcilers.store_cluster_reconciler import StoreClusterReconciler
from evenkeel_operator.reconcilers.table_resource_reconciler import TableResourceReconciler

__all__ = ["LeaderTerm", "LeaderTermSettings"]

log = logging.getLogger(__name__)

_WATCHED: Final = (
    Watch(STORE_CLUSTER),
    Watch(TABLE),
    Watch(PARTITION_ASSIGNMENT),
    Watch(REBALANCE_PLAN),
    Watch(STATEFUL_SET, MANAGED),
    Watch(POD, MANAGED),
    Watch(PERSISTENT_VOLUME_CLAIM, MANAGED),
)
_PARTS: Final = (STATEFUL_SET, POD, PERSISTENT_VOLUME_CLAIM)
_LAG_SECONDS: Final = 15.0
_PARTING_SECONDS: Final = 5.0


class LeaderTermSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What leading takes."""

    identity: str
    own_namespace: str
    namespaces: tuple[str, ...] = ()
    """The namespaces to serve; all where none is named."""
    kubeconfig: Path | None = None
    nodes: bool = True
    """Whether Nodes may be read, for zones and cordons."""
    seed_secret: str
    """What certificates and tokens follow from."""
    etcd: EtcdSettings
    etcd_service: str = ""
    """The Service of an etcd of our own, to which we give its certificates."""
    etcd_note: str = ""
    """The ConfigMap in which members of our own etcd read that it has been formed."""
    pods: PodSettings
    cert_manager: CertManagerSettings | None = None
    """Where cert-manager signs for stores; otherwise we do."""
    folder: Path
    """For certificates, as files."""
    sweep_seconds: float = 300.0


class LeaderTerm:
    """Runs until cancelled, or until it is no use to go on."""

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
        """`etcd_authority` signs for the members of our own etcd."""
        self._kube = kube
        self._settings = settings
        self._etcd_authority = etcd_authority
        self._vitals = health
        self._watched = (*_WATCHED, *((Watch(NODE),) if settings.nodes else ()))
        self._cache = Cache(self._changed)
        self._recorder = Recorder(kube, instance=settings.identity)
        self._statuses = StatusWriter(kube, self._cache, told=self._recorder.hear)
        self._reader = Reader(self._statuses)
        self._tables = TableResourceReconciler(
            kube, self._cache, self._statuses, self._reader, unavailable=self._unavailable
        )
        self._table_queue = WorkQueue(self._tables.look, of="table")
        self._swept = False
        self._controllers = Controllers(
            holder=settings.identity, metastore=metastores.of, resources=self._resources, fenced=self._fenced
        )
        self._clusters = StoreClusterReconciler(
            kube,
            self._cache,
            self._statuses,
            self._reader,
            settings=settings.pods,
            seed=seed,
            certificates=self._certificate_source(seed),
            metastores=metastores,
            controllers=self._controllers,
        )
        self._cluster_queue = WorkQueue(self._clusters.look, of="store_cluster")
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # What others want to know

    def oldest(self) -> float:
        """How many seconds the longest-waiting key has waited."""
        return max(self._table_queue.oldest(), self._cluster_queue.oldest())

    def figures(self) -> dict[str, float]:
        """Counts, by the names that metrics have."""
        return {
            "store_clusters": self._cache.count(STORE_CLUSTER),
            "tables": self._cache.count(TABLE),
            "dropped_tables": self._controllers.dropped(),
            "queued": len(self._table_queue) + len(self._cluster_queue),
            "waiting_statuses": len(self._statuses),
            "written_statuses": self._statuses.written,
            "failed_looks": self._table_queue.failures + self._cluster_queue.failures,
            "controllers": len(self._controllers),
            "busy_controllers": self._controllers.busy(),
            "troubled_controllers": len(self._controllers.problems()),
        }

    # Running

    async def run(self) -> None:
        """Lead; FencedError when another operator leads, KubernetesError when the API server is lost for good."""
        self._vitals.oldest = self.oldest
        try:
            await self._certify_etcd()
            await self._sweep_once()
        except ApiForbiddenError as error:
            await self._lament(error)
            raise
        try:
            async with asyncio.TaskGroup() as tasks:
                for work in (
                    self._watch(),
                    self._sweep(),
                    self._statuses.run(),
                    self._recorder.run(),
                    self._table_queue.run(),
                    self._cluster_queue.run(),
                    self._until_deposed(),
                ):
                    tasks.create_task(work)
        finally:
            await self._controllers.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._statuses.flush(), _PARTING_SECONDS)

    async def _lament(self, error: ApiForbiddenError) -> None:
        """Say in the StoreClusters that could be listed why nothing is done for them."""
        problem = Problem(Reason.FORBIDDEN, f"the operator lacks a permission: {error}")
        for subject in self._cache.all(STORE_CLUSTER):
            generation, now = subject["metadata"].get("generation", 0), timestamp(datetime.now(UTC))
            self._statuses.set(
                subject, with_problems(self._statuses.of(subject), [problem], generation=generation, now=now)
            )
        await self._statuses.flush()

    def _resources(self, key: Key) -> KubeResources:
        return KubeResources(
            self._kube,
            self._cache,
            self._statuses,
            self._reader,
            cluster=key,
            with_node_zones=self._clusters.with_node_zones,
            describe=self._clusters.describe,
        )

    def _certificate_source(self, seed: bytes) -> CertificateSource:
        settings = self._settings
        if not settings.pods.tls:
            return NoCertificates()
        if settings.cert_manager is not None:
            return CertManager(self._kube, settings.cert_manager)
        return OperatorAuthorities(seed, wall_clock=lambda: datetime.now(UTC))

    def _unavailable(self, cluster: Key) -> bool:
        return cluster in self._controllers.problems()

    def _fenced(self, error: FencedError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    async def _until_deposed(self) -> None:
        await self._ended

    async def _certify_etcd(self) -> None:
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

    # Seeing

    async def _watch(self) -> None:
        watches = Watches(
            self._watched,
            namespaces=self._settings.namespaces,
            configuration=lambda: load_configuration(self._settings.kubeconfig),
            deliver=self._deliver,
        )
        await watches.run()

    def _deliver(self, kind: Kind, gone: bool, subject: Object) -> None:
        self._vitals.saw_event(kind)
        subject.setdefault("apiVersion", kind.api_version)
        subject.setdefault("kind", kind.name)
        if gone:
            self._cache.remove(kind, subject)
        else:
            self._cache.put(kind, subject)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_seconds)
            try:
                await self._certify_etcd()
                await self._sweep_once()
            except KubernetesError as error:
                log.warning("nothing could be swept: %s", error)

    async def _sweep_once(self) -> None:
        """List everything, in case a watch has missed something; and look at everything."""
        first, self._swept = not self._swept, True
        missed = 0
        for watch in self._watched:
            for namespace in self._places(watch.kind):
                listing = await self._kube.list(watch.kind, namespace, selector=watch.selector)
                if not first:
                    missed += await self._missed(watch.kind, listing.items)
                self._cache.relist(watch.kind, listing.items, version=listing.version, namespace=namespace)
        self._vitals.swept(missed=missed)
        self._clusters.forget_applied()
        for kind, queue in ((STORE_CLUSTER, self._cluster_queue), (TABLE, self._table_queue)):
            for subject in self._cache.all(kind):
                queue.add(key_of(subject))

    def _places(self, kind: Kind) -> Sequence[str]:
        return self._settings.namespaces if kind.namespaced and self._settings.namespaces else ("",)

    async def _missed(self, kind: Kind, listed: Sequence[Object]) -> int:
        """How many objects no watch tells of, even when it is given some time."""
        newer = [subject for subject in listed if self._older(kind, subject)]
        if newer:
            await asyncio.sleep(_LAG_SECONDS)
        return sum(self._older(kind, subject) for subject in newer)

    def _older(self, kind: Kind, subject: Object) -> bool:
        known = self._cache.get(kind, *key_of(subject))
        return known is None or version_of(known) < version_of(subject)

    # Hearing

    def _changed(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        """Something was seen to change: who has to look at what?"""
        subject = after if after is not None else before
        assert subject is not None
        if after is None:
            self._reader.forget(subject)
        if not _matters(kind, before, after):
            return
        namespace, name = key_of(subject)
        if kind == STORE_CLUSTER:
            self._cluster_queue.add((namespace, name))
            self._hear((namespace, name))
            for table in self._cache.owned(TABLE, namespace, name):
                self._table_queue.add(key_of(table))
        elif kind == TABLE:
            cluster = (namespace, str(subject["spec"].get("storeCluster", "")))
            self._table_queue.add((namespace, name))
            self._hear(cluster, name)
            if after is None or "deletionTimestamp" in subject["metadata"]:
                self._cluster_queue.add(cluster)
        elif kind in _PARTS:
            self._cluster_queue.add((namespace, subject["metadata"].get("labels", {}).get(STORE_CLUSTER_LABEL, "")))
        elif kind == NODE:
            for cluster_seen in self._cache.all(STORE_CLUSTER):
                self._cluster_queue.add(key_of(cluster_seen))
        else:
            self._hear_of_part(namespace, str(subject["spec"].get("table", "")))

    def _hear_of_part(self, namespace: str, table: str) -> None:
        found = self._cache.get(TABLE, namespace, table)
        if found is not None:
            self._hear((namespace, str(found["spec"].get("storeCluster", ""))), table)
            return
        for cluster in self._cache.all(STORE_CLUSTER, namespace):  # that it is missing, anyone can say
            self._hear(key_of(cluster), table)

    def _hear(self, cluster: Key, table: str | None = None) -> None:
        self._controllers.hear(cluster, table)


def _matters(kind: Kind, before: Object | None, after: Object | None) -> bool:
    """Whether a change is one; statuses of our own kinds are written by us alone."""
    if before is None or after is None or kind in _PARTS:
        return True
    fields = ("finalizers", "deletionTimestamp", "annotations", "labels", "uid")
    metadata = [[subject["metadata"].get(field) for field in fields] for subject in (before, after)]
    return metadata[0] != metadata[1] or before.get("spec") != after.get("spec")

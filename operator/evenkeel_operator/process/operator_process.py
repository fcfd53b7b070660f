"""One replica of the operator: a candidate, and at times the leader.

Every replica serves probes and metrics, and checks etcd. Only the leader watches and changes objects. A leader that
loses its Lease, or finds a newer epoch in the metastore, ends its term and becomes a candidate again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from evenkeel.errors import ClusterMismatchError, EvenkeelError, KubernetesError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.kubeconfig import load_configuration
from evenkeel.kube.object_kinds import CONFIG_MAP
from evenkeel.metastore.etcd_maintenance import Maintenance, ReliefSchedule
from evenkeel.runtime.http_server import HttpServer, Response
from evenkeel_operator.identity.authority import Authority
from evenkeel_operator.identity.metastore_connections import Metastores
from evenkeel_operator.identity.seed import load_seed
from evenkeel_operator.kube.crd_check import check_crds
from evenkeel_operator.kube.leader_lease import LeaseLock
from evenkeel_operator.process.etcd_member import FORMED
from evenkeel_operator.process.leader_term import LeaderTerm
from evenkeel_operator.process.operator_health import OperatorHealth
from evenkeel_operator.process.operator_metrics import OperatorMetrics
from evenkeel_operator.process.operator_options import OperatorOptions

__all__ = ["Operator", "operate"]

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 2.0
_PING_SECONDS: Final = 10.0
_RELIEF_SECONDS: Final = 10.0
_CRD_CHECK_SECONDS: Final = 300.0
_OWN_ETCD: Final = "metastore"


async def operate(options: OperatorOptions) -> None:
    """Run until SIGTERM or SIGINT."""
    stop_requested = _on_signals()
    operator = Operator(options)
    running = asyncio.create_task(operator.run())
    stop = asyncio.create_task(stop_requested.wait())
    try:
        await asyncio.wait((running, stop), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for task in (running, stop):
            task.cancel()
        await asyncio.gather(running, stop, return_exceptions=True)
    log.info("stopped")


class Operator:
    """One replica."""

    def __init__(self, options: OperatorOptions) -> None:
        self._options = options
        self.health = OperatorHealth()
        self._term: LeaderTerm | None = None
        identity = f"{options.term.identity}-{uuid.uuid4().hex[:6]}"
        self._settings = msgspec.structs.replace(options.term, identity=identity)

    async def run(self) -> None:
        """Serve probes and metrics, and lead whenever this replica holds the Lease."""
        options = self._options
        configuration = await load_configuration(options.term.kubeconfig)
        kube = Kube(configuration, on_request=self.health.saw_request)
        server = HttpServer(self._pages())
        try:
            await server.start(options.http)
            await self._work(kube)
        finally:
            await server.close()
            await kube.close()

    async def _work(self, kube: Kube) -> None:
        settings = self._settings
        seed = await self._seed(kube)
        authority = Authority(seed, _OWN_ETCD) if settings.etcd_service and settings.pods.tls else None
        metastores = Metastores(kube, own=settings.etcd, folder=settings.folder, authority=authority)

        def new_term() -> LeaderTerm:
            return LeaderTerm(kube, settings, self.health, seed=seed, metastores=metastores, etcd_authority=authority)

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ping_etcd(metastores))
                tasks.create_task(self._record_etcd_formed(kube))
                tasks.create_task(self._check_crds(kube))
                tasks.create_task(self._free_etcd_space(metastores))
                await self._campaign(kube, new_term)
        finally:
            await metastores.close()

    async def _seed(self, kube: Kube) -> bytes:
        while True:
            try:
                return await load_seed(kube, self._settings.seed_secret, self._settings.own_namespace)
            except KubernetesError as error:
                log.warning("cannot read the seed; retrying in %g s: %s", _RETRY_SECONDS, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _campaign(self, kube: Kube, new_term: Callable[[], LeaderTerm]) -> None:
        """Wait for the Lease, lead for a term, and start over."""
        while True:
            lock = LeaseLock(
                kube,
                name=self._options.lease,
                namespace=self._settings.own_namespace,
                identity=self._settings.identity,
                duration=self._options.lease_seconds,
            )
            async with self._publishing_leader(lock):
                await lock.acquire()
                try:
                    await self._lead(new_term(), lock)
                except* EvenkeelError as group:
                    for error in _leaves(group):
                        log.warning("the term as leader has ended: %s", error)
                finally:
                    self.health.leading = False
                    self._term = None
                    await asyncio.shield(lock.release())
            await asyncio.sleep(_RETRY_SECONDS)

    async def _lead(self, term: LeaderTerm, lock: LeaseLock) -> None:
        self._term = term
        self.health.leading = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lock.hold())
            tasks.create_task(term.run())

    @contextlib.asynccontextmanager
    async def _publishing_leader(self, lock: LeaseLock) -> AsyncIterator[None]:
        """Keep the leader in the health report up to date."""

        async def follow() -> None:
            while True:
                self.health.leader = lock.holder
                await asyncio.sleep(1.0)

        task = asyncio.create_task(follow())
        try:
            yield
        finally:
            task.cancel()

    async def _ping_etcd(self, metastores: Metastores) -> None:
        while True:
            try:
                await metastores.own().get("/evenkeel/ping")
                self.health.etcd_full = await metastores.own().full()
                self.health.etcd = ""
                await asyncio.sleep(_PING_SECONDS)
            except EvenkeelError as error:
                self.health.etcd = str(error)
                if isinstance(error, ClusterMismatchError):
                    # The status of each StoreCluster reports whether this etcd is the one that it followed.
                    await metastores.own().forget()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _record_etcd_formed(self, kube: Kube) -> None:
        """Record that etcd has answered: from then on no member with an empty volume may form a new cluster."""
        name, namespace = self._settings.etcd_note, self._settings.own_namespace
        while name:
            if not self.health.etcd:
                try:
                    await kube.merge(CONFIG_MAP, name, namespace, {"data": {FORMED: "true"}})
                except KubernetesError as error:
                    log.warning("cannot record that etcd has been formed; retrying: %s", error)
                else:
                    return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _check_crds(self, kube: Kube) -> None:
        """Report CRDs of another release, at the start and when the result changes."""
        while True:
            try:
                found = await check_crds(kube)
            except KubernetesError as error:
                log.info("cannot check the CRDs; retrying in %g s: %s", _RETRY_SECONDS, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if found and found != self.health.crds:
                log.warning("%s", found)
            self.health.crds = found
            if found is None:
                return
            await asyncio.sleep(_CRD_CHECK_SECONDS)

    async def _free_etcd_space(self, metastores: Metastores) -> None:
        """Free space in the bundled etcd when its quota is used up; the owner of an external etcd does that."""
        schedule = ReliefSchedule()
        while self._settings.etcd_note:
            await asyncio.sleep(_RELIEF_SECONDS)
            if not schedule.due() or not self.health.etcd_full or not self.health.leading:
                continue
            log.warning("etcd has used up its space quota; compacting and defragmenting one member at a time")
            try:
                async with Maintenance(metastores.own_settings()) as maintenance:
                    self.health.etcd_reliefs += await maintenance.relieve()
                self.health.etcd_full = await metastores.own().full()
            except EvenkeelError as error:
                log.warning("cannot free space in etcd: %s", error)
            schedule.attempted()

    def _figures(self) -> dict[str, float]:
        return self._term.figures() if self._term is not None else {}

    def _pages(self) -> dict[str, Callable[[], Response]]:
        health, metrics = self.health, OperatorMetrics(self.health, self._figures)

        def probe(why: Callable[[], str], good: bytes) -> Callable[[], Response]:
            def page() -> Response:
                problem = why()
                return Response(503, f"{problem}\n".encode()) if problem else Response(200, good)

            return page

        return {
            "/healthz": probe(health.unhealthy, b"alive\n"),
            "/readyz": probe(health.unready, b"ready\n"),
            "/metrics": lambda: Response(200, metrics.render(), "text/plain; version=0.0.4; charset=utf-8"),
            "/status": lambda: Response(200, msgspec.json.encode(health.report()), "application/json"),
        }


def _leaves(group: BaseExceptionGroup[EvenkeelError]) -> list[EvenkeelError]:
    found: list[EvenkeelError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _on_signals() -> asyncio.Event:
    requested = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, requested.set)
    return requested

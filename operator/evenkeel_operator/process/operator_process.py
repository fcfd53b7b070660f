"""Candidate, leader, and the orderly end of both.

Every replica serves probes and metrics and keeps an eye on etcd. One leads: it alone watches and changes anything. One
that loses its Lease, or finds another's epoch in the metastore, ends its term and stands again.
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
from evenkeel.metastore.etcd_maintenance import Maintenance, ReliefPace
from evenkeel.runtime.http_server import Answer, HttpServer
from evenkeel_operator.identity.authority import Authority
from evenkeel_operator.identity.metastore_connections import Metastores
from evenkeel_operator.identity.seed import load_seed
from evenkeel_operator.kube.crd_check import check_definitions
from evenkeel_operator.kube.leader_lease import LeaseLock
from evenkeel_operator.process.etcd_member import FORMED
from evenkeel_operator.process.leader_term import LeaderTerm
from evenkeel_operator.process.operator_metrics import Metrics
from evenkeel_operator.process.operator_health import OperatorHealth
from evenkeel_operator.process.operator_options import Options

__all__ = ["Operator", "operate"]

log = logging.getLogger(__name__)

_BETWEEN_TERMS: Final = 2.0
_PING_SECONDS: Final = 10.0
_RELIEF_SECONDS: Final = 10.0
_DEFINITIONS_SECONDS: Final = 300.0
_OWN_ETCD: Final = "metastore"


async def operate(options: Options) -> None:
    """Run until SIGTERM or SIGINT."""
    asked = _signalled()
    operator = Operator(options)
    running = asyncio.create_task(operator.run())
    stop = asyncio.create_task(asked.wait())
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

    def __init__(self, options: Options) -> None:
        self._options = options
        self.health = OperatorHealth()
        self._term: LeaderTerm | None = None
        identity = f"{options.term.identity}-{uuid.uuid4().hex[:6]}"
        self._settings = msgspec.structs.replace(options.term, identity=identity)

    async def run(self) -> None:
        """Serve pages, and lead whenever that is possible."""
        options = self._options
        configuration = await load_configuration(options.term.kubeconfig)
        kube = Kube(configuration, counted=self.health.saw_request)
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
                tasks.create_task(self._note_etcd(kube))
                tasks.create_task(self._check_definitions(kube))
                tasks.create_task(self._relieve_etcd(metastores))
                await self._stand(kube, new_term)
        finally:
            await metastores.close()

    async def _seed(self, kube: Kube) -> bytes:
        while True:
            try:
                return await load_seed(kube, self._settings.seed_secret, self._settings.own_namespace)
            except KubernetesError as error:
                log.warning("nothing can be done without the seed: %s", error)
                await asyncio.sleep(_BETWEEN_TERMS)

    async def _stand(self, kube: Kube, new_term: Callable[[], LeaderTerm]) -> None:
        """Lead, and stand again after every term."""
        while True:
            lock = LeaseLock(
                kube,
                name=self._options.lease,
                namespace=self._settings.own_namespace,
                identity=self._settings.identity,
                duration=self._options.lease_seconds,
            )
            async with self._told(lock):
                await lock.acquire()
                try:
                    await self._lead(new_term(), lock)
                except* EvenkeelError as group:
                    for error in _leaves(group):
                        log.warning("this term is over: %s", error)
                finally:
                    self.health.leading = False
                    self._term = None
                    await asyncio.shield(lock.release())
            await asyncio.sleep(_BETWEEN_TERMS)

    async def _lead(self, term: LeaderTerm, lock: LeaseLock) -> None:
        self._term = term
        self.health.leading = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lock.hold())
            tasks.create_task(term.run())

    @contextlib.asynccontextmanager
    async def _told(self, lock: LeaseLock) -> AsyncIterator[None]:
        """Keep the vitals' leader what the Lease says."""

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
                    # Each StoreCluster's status tells whether it is the right one for it.
                    await metastores.own().forget()
                await asyncio.sleep(_BETWEEN_TERMS)

    async def _note_etcd(self, kube: Kube) -> None:
        """Once etcd answers, note that for its members: one that comes with an empty volume must not begin anew."""
        name, namespace = self._settings.etcd_note, self._settings.own_namespace
        while name:
            if not self.health.etcd:
                try:
                    await kube.merge(CONFIG_MAP, name, namespace, {"data": {FORMED: "true"}})
                except KubernetesError as error:
                    log.warning("that etcd is formed cannot be noted: %s", error)
                else:
                    return
            await asyncio.sleep(_BETWEEN_TERMS)

    async def _check_definitions(self, kube: Kube) -> None:
        """Say at the start, and once more when it changes, whether the CRDs are of this release."""
        while True:
            try:
                found = await check_definitions(kube)
            except KubernetesError as error:
                log.info("the CRDs cannot be checked now: %s", error)
                await asyncio.sleep(_BETWEEN_TERMS)
                continue
            if found and found != self.health.crds:
                log.warning("%s", found)
            self.health.crds = found
            if found is None:
                return
            await asyncio.sleep(_DEFINITIONS_SECONDS)

    async def _relieve_etcd(self, metastores: Metastores) -> None:
        """Where the bundled etcd has used up its quota, free space; whose etcd it is otherwise has to do that."""
        pace = ReliefPace()
        while self._settings.etcd_note:
            await asyncio.sleep(_RELIEF_SECONDS)
            if not pace.due() or not self.health.etcd_full or not self.health.leading:
                continue
            log.warning("etcd has used up its quota: it is compacted and defragmented, one member after the other")
            try:
                async with Maintenance(metastores.own_settings()) as maintenance:
                    self.health.etcd_reliefs += await maintenance.relieve()
                self.health.etcd_full = await metastores.own().full()
            except EvenkeelError as error:
                log.warning("etcd still refuses writes: %s", error)
            pace.attempted()

    def _figures(self) -> dict[str, float]:
        return self._term.figures() if self._term is not None else {}

    def _pages(self) -> dict[str, Callable[[], Answer]]:
        health, metrics = self.health, Metrics(self.health, self._figures)

        def judged(why: Callable[[], str], good: bytes) -> Callable[[], Answer]:
            def page() -> Answer:
                words = why()
                return Answer(503, f"{words}\n".encode()) if words else Answer(200, good)

            return page

        return {
            "/healthz": judged(health.unhealthy, b"alive\n"),
            "/readyz": judged(health.unready, b"ready\n"),
            "/metrics": lambda: Answer(200, metrics.render(), "text/plain; version=0.0.4; charset=utf-8"),
            "/status": lambda: Answer(200, msgspec.json.encode(health.report()), "application/json"),
        }


def _leaves(group: BaseExceptionGroup[EvenkeelError]) -> list[EvenkeelError]:
    found: list[EvenkeelError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _signalled() -> asyncio.Event:
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    return asked

"""The store process: state machine, socket, routes, maintenance and Flight server, run together until a signal.

In a pod the sidecar is stopped only after this process has ended. So on SIGTERM the store first asks the sidecar to
hand over all leaderships and waits for that, and only then stops serving clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from evenkeel.errors import InvalidInputError
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.routing.route_follower import follow
from evenkeel.routing.routing_table import RoutingTable
from evenkeel.runtime.http_server import HttpServer, Response
from evenkeel.versions import Feature, supports
from evenkeel.wire.store_socket import StoreSocket
from evenkeel_store.maintenance.leader_maintenance import LeaderMaintenance
from evenkeel_store.maintenance.peer_stores import Credentials, PeerStoreClient
from evenkeel_store.maintenance.replica_comparison import ReplicaComparer
from evenkeel_store.maintenance.replica_repair import ReplicaRepairer
from evenkeel_store.process.metrics import Metrics
from evenkeel_store.process.options import Options
from evenkeel_store.serving.access_tokens import AccessTokenFile
from evenkeel_store.serving.flight_server import FlightServer
from evenkeel_store.serving.scans import IDLE_SECONDS, Scanner
from evenkeel_store.serving.store_service import StoreService
from evenkeel_store.state_machine.store_state_machine import StoreStateMachine

__all__ = ["run_store"]

log = logging.getLogger(__name__)

_Tokens = Callable[[], list[bytes]]


async def run_store(options: Options) -> None:
    """Run until SIGTERM, SIGINT or a permanent failure."""
    stopping = _stop_signal()
    state_machine = StoreStateMachine(
        options.data, memory=options.memory, threads=options.threads, reserve=options.reserve
    )
    try:
        _report_damage(state_machine)
        async with EtcdMetastore(options.etcd) as metastore:
            await _run(options, state_machine, metastore, stopping)
    finally:
        await state_machine.stop()
    log.info("stopped")


def _report_damage(state_machine: StoreStateMachine) -> None:
    if state_machine.engine.database.damage:
        log.error(
            "the database was damaged and has been set aside; its partitions will be restored: %s",
            state_machine.engine.database.damage,
        )
    if lost := state_machine.counters["lost_transactions"]:
        log.error("the database's write-ahead log is damaged: %d transactions are lost and will be applied again", lost)


async def _run(
    options: Options, state_machine: StoreStateMachine, metastore: EtcdMetastore, stopping: asyncio.Event
) -> None:
    sidecar = StoreSocket(
        options.socket, volume=state_machine.volume, state_machine=state_machine, credit=options.credit
    )
    routes = RoutingTable(options.keys)
    service = StoreService(state_machine, sidecar, routes, store=options.store)
    maintenance = LeaderMaintenance(
        service,
        writer_seconds=options.writer_seconds,
        keeps_time=lambda: supports(sidecar.cluster_version, Feature.LOG_TIME),
    )
    state_machine.on_role = maintenance.enqueue
    tokens = _tokens(options)
    repairer = ReplicaRepairer(service, PeerStoreClient(_credentials(options, tokens)), heals=options.heals)
    async with _serving(options, service, tokens) as server, _http_server(options, state_machine, sidecar) as http_port:
        log.info("running", extra={"flight_port": server.port, "http_port": http_port, "volume": state_machine.volume})
        await _run_until(
            stopping,
            sidecar.run(),
            follow(metastore, routes, changed=maintenance.table_changed),
            maintenance.run(),
            ReplicaComparer(service, repairer, seconds=options.compare_seconds).run(),
            _end_idle_scans(server.scanner),
            last=lambda: _hand_over(sidecar, options.drain_seconds),
        )


async def _run_until(
    stopping: asyncio.Event, *works: Coroutine[Any, Any, None], last: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Run all coroutines until a signal arrives or one of them fails; after a signal, run `last`."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(work) for work in works]
    stop: asyncio.Task[Any] = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((stop, *tasks), return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        await last()
    finally:
        for task in (stop, *tasks):
            task.cancel()
        await asyncio.gather(stop, *tasks, return_exceptions=True)


async def _end_idle_scans(scanner: Scanner) -> None:
    while True:
        await asyncio.sleep(IDLE_SECONDS / 4)
        await asyncio.to_thread(scanner.end_idle)


async def _hand_over(sidecar: StoreSocket, seconds: float) -> None:
    log.info("stopping: handing over leaderships")
    try:
        drained = await asyncio.wait_for(sidecar.drain(), seconds)
    except TimeoutError:
        log.warning("leaderships were not handed over within %g s", seconds)
    else:
        if drained.remaining:
            log.warning("no other store could take over %d partitions", drained.remaining)


def _tokens(options: Options) -> _Tokens | None:
    if options.token_file is None:
        return None
    try:
        return AccessTokenFile(options.token_file).tokens
    except OSError as error:
        raise InvalidInputError(f"--token-file {options.token_file}: {error.strerror}") from error


def _credentials(options: Options, tokens: _Tokens | None) -> Credentials:
    cert, key = (options.tls.cert, options.tls.key) if options.tls is not None else (None, None)
    return Credentials(tokens=tokens, ca=options.tls_ca, cert=cert, key=key)


@contextlib.asynccontextmanager
async def _serving(options: Options, service: StoreService, tokens: _Tokens | None) -> AsyncIterator[FlightServer]:
    server = FlightServer(
        service,
        host=options.listen.host,
        port=options.listen.port,
        loop=asyncio.get_running_loop(),
        tls=options.tls,
        tokens=tokens,
    )
    try:
        yield server
    finally:
        closing = asyncio.get_running_loop().run_in_executor(None, server.close)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(closing), options.grace_seconds)


@contextlib.asynccontextmanager
async def _http_server(options: Options, state_machine: StoreStateMachine, sidecar: StoreSocket) -> AsyncIterator[int]:
    metrics = Metrics(state_machine, sidecar)

    def ready() -> Response:
        return Response(200, b"ready\n") if sidecar.connected else Response(503, b"the sidecar is not connected\n")

    server = HttpServer(
        {
            "/healthz": lambda: Response(200, b"alive\n"),
            "/readyz": ready,
            "/metrics": lambda: Response(200, metrics.render(), "text/plain; version=0.0.4; charset=utf-8"),
        }
    )
    port = await server.start(options.http)
    try:
        yield port
    finally:
        await server.close()


def _stop_signal() -> asyncio.Event:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping

"""Runs host and agent together until a signal arrives, and shuts them down in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from importlib.metadata import PackageNotFoundError, version

from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.protocol.records import StoreRecord
from evenkeel.runtime.flags import Endpoint
from evenkeel.runtime.http_server import Handler, HttpServer, Response
from evenkeel_raft.agent.agent import Agent
from evenkeel_raft.agent.agent_context import StoreIdentity
from evenkeel_raft.agent.agent_settings import AgentSettings
from evenkeel_raft.host.host import Host
from evenkeel_raft.process.metrics import Metrics
from evenkeel_raft.process.options import Options
from evenkeel_raft.process.sidecar_status import encode, status_of, unready

__all__ = ["run_sidecar"]

log = logging.getLogger(__name__)


async def run_sidecar(options: Options) -> None:
    """Run until SIGTERM, SIGINT or a fatal failure."""
    asked = _signalled()
    host = await Host.open(
        options.data,
        store=options.store,
        cluster=options.keys.root,
        socket=options.socket,
        listen=options.listen,
        settings=options.host,
        tls=options.tls,
    )
    try:
        async with EtcdMetastore(options.etcd) as metastore:
            await _run(options, host, metastore, asked)
    finally:
        await host.close()
    log.info("stopped")


async def _run(options: Options, host: Host, metastore: EtcdMetastore, asked: asyncio.Event) -> None:
    agent = _agent(options, host, metastore)
    server = HttpServer(_pages(host, agent))
    port = await server.start(options.http)
    log.info(
        "running",
        extra={
            "volume": host.identity.volume,
            "peers_port": host.port,
            "http_port": port,
            "replicas": len(host.running()),
            "socket": str(options.socket),
        },
    )
    following = asyncio.create_task(agent.run())
    stop = asyncio.create_task(asked.wait())
    try:
        await asyncio.wait((following, stop, host.failed), return_when=asyncio.FIRST_COMPLETED)
        if host.failed.done():
            host.failed.result()
        if following.done():
            following.result()
        log.info("stopping: handing over leaderships")
        await _unless_failed(host, agent.stop())
        await following
    finally:
        for task in (following, stop):
            task.cancel()
        await asyncio.gather(following, stop, return_exceptions=True)
        await server.close()


async def _unless_failed(host: Host, work: Coroutine[None, None, None]) -> None:
    """Await `work`, or raise as soon as the host fails."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task, host.failed), return_when=asyncio.FIRST_COMPLETED)
        if host.failed.done():
            host.failed.result()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _agent(options: Options, host: Host, metastore: EtcdMetastore) -> Agent:
    advertised = options.advertise
    if not advertised.port:
        advertised = Endpoint(advertised.host, host.port)
    record = StoreRecord(
        volume=host.identity.volume,
        address=str(advertised),
        flight=options.flight,
        zone=options.zone,
        node=options.node,
        weight=options.weight,
        capacity=options.capacity,
        labels=options.labels,
    )
    return Agent(
        metastore,
        keys=options.keys,
        groups=host,
        me=StoreIdentity(options.store, record, options.pod),
        settings=AgentSettings(
            lease_seconds=options.lease_seconds,
            step_down_when_stalled=options.step_down_when_stalled,
            adopt_metastore=options.adopt_metastore,
        ),
    )


def _pages(host: Host, agent: Agent) -> dict[str, Handler]:
    metrics, release = Metrics(host, agent), _version()

    def ready() -> Response:
        why = unready(host)
        return Response(503, f"{why}\n".encode()) if why else Response(200, b"ready\n")

    async def status() -> Response:
        return Response(200, encode(await status_of(host, agent, version=release)), "application/json")

    return {
        "/healthz": lambda: Response(200, b"alive\n"),
        "/readyz": ready,
        "/metrics": lambda: Response(200, metrics.render(), "text/plain; version=0.0.4; charset=utf-8"),
        "/status": status,
    }


def _version() -> str:
    try:
        return version("evenkeel-operator")
    except PackageNotFoundError:
        return "unknown"


def _signalled() -> asyncio.Event:
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    return asked

"""Runs a local cluster: etcd, for each StoreCluster its stores as pairs of processes, and a controller.

Stores that a StoreCluster no longer asks for are emptied by the controller first, and stopped when they hold nothing.
A process that dies is started again, unless somebody said that it should be down (`evenkeel local kill`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from pathlib import Path
from typing import Final

import msgspec

from evenkeel.controller.controller import Controller
from evenkeel.errors import InvalidInputError
from evenkeel.local.children import Child
from evenkeel.local.layout import Layout, Running, StorePorts
from evenkeel.local.resources import ClusterResources, LocalResources
from evenkeel.metastore.binary import find_etcd
from evenkeel.metastore.etcd import EtcdMetastore
from evenkeel.metastore.server import EtcdServer, free_port
from evenkeel.metastore.settings import EtcdSettings
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.reconcile.stores import leaving, read_stores

__all__ = ["DOWN_ANNOTATION", "Supervisor", "serve"]

log = logging.getLogger(__name__)

DOWN_ANNOTATION: Final = "evenkeel.dev/down"
"""On a StoreCluster: names of stores whose processes are to be down, separated by commas (`evenkeel local kill`)."""
LOOPBACK: Final = "127.0.0.1"


class _Store:
    """One store's processes."""

    def __init__(self, name: str, cluster: StoreCluster, layout: Layout, ports: StorePorts, etcd: str) -> None:
        data = layout.store(name)
        data.mkdir(parents=True, exist_ok=True)
        override = next((entry for entry in cluster.spec.overrides if entry.name == name), None)
        throttle = cluster.spec.throttles.bytes_per_second
        common = ("--store", name, "--store-cluster", cluster.metadata.name, "--etcd-endpoints", etcd)
        socket = ("--socket", str(layout.socket(name)))
        placed = (
            "--zone",
            (override.zone or "") if override else "",
            "--weight",
            str(override.weight if override else 1),
        )
        limits = ("--bytes-per-second", str(throttle.units)) if throttle is not None else ()
        self.sidecar = Child(
            f"{name} sidecar",
            "evenkeel_raft.process.main",
            (
                *common,
                *socket,
                *placed,
                *limits,
                *("--data", str(data / "raft"), "--log-format", "console"),
                *("--listen", f"{LOOPBACK}:{ports.peers}", "--http", f"{LOOPBACK}:{ports.http}"),
                *("--flight", f"grpc://{LOOPBACK}:{ports.flight}"),
                *("--flight", f"grpc://{LOOPBACK}:{ports.flight}"),
            ),
            log=layout.logs / f"{name}.raft.log",
        )
        self.engine = Child(
            f"{name} store",
            "evenkeel_store.process.main",
            (
                *common,
                *socket,
                *("--data", str(data / "store"), "--log-format", "console"),
                *("--listen", f"{LOOPBACK}:{ports.flight}", "--http", f"{LOOPBACK}:{ports.store_http}"),
            ),
            log=layout.logs / f"{name}.store.log",
        )

    async def start(self) -> None:
        await self.sidecar.start()
        await self.engine.start()

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """The store first, so that it can hand over through its sidecar."""
        await self.engine.stop(how)
        await self.sidecar.stop(how)


class Supervisor:
    """Everything of one local cluster, in one event loop; `run` until cancelled."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stores: dict[str, _Store] = {}
        self._controllers: dict[str, asyncio.Task[None]] = {}
        self._ports = layout.ports()

    async def run(self) -> None:
        """Bring everything up, and keep it so."""
        layout = self._layout
        etcd = EtcdServer(layout.etcd, binary=find_etcd())
        async with etcd, EtcdMetastore(EtcdSettings(endpoints=(etcd.endpoint,))) as metastore:
            layout.say_running(Running(pid=os.getpid(), etcd=etcd.endpoint))
            try:
                await self._follow(LocalResources(metastore), metastore, etcd.endpoint)
            finally:
                await self._stop_everything()
                layout.say_stopped()

    async def _follow(self, resources: LocalResources, metastore: EtcdMetastore, endpoint: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_looking(resources, metastore, endpoint))
            async for _ in resources.changes():
                await self._look(resources, metastore, endpoint, tasks)

    async def _keep_looking(self, resources: LocalResources, metastore: EtcdMetastore, endpoint: str) -> None:
        """Stores that were emptied go when that is so, of which no resource tells."""
        while True:
            await asyncio.sleep(1.0)
            for cluster in await resources.all_of(StoreCluster):
                await self._retire(cluster, metastore)

    async def _look(
        self, resources: LocalResources, metastore: EtcdMetastore, endpoint: str, tasks: asyncio.TaskGroup
    ) -> None:
        for cluster in await resources.all_of(StoreCluster):
            name = cluster.metadata.name
            await self._bring_up(cluster, endpoint)
            if name not in self._controllers:
                controller = Controller(
                    metastore,
                    keys=Keys(namespace=cluster.metadata.namespace, store_cluster=name),
                    resources=ClusterResources(resources, name),
                    holder=f"local-{os.getpid()}",
                )
                self._controllers[name] = tasks.create_task(controller.run())

    async def _bring_up(self, cluster: StoreCluster, endpoint: str) -> None:
        down = set(cluster.metadata.annotations.get(DOWN_ANNOTATION, "").split(","))
        wanted = {f"{cluster.metadata.name}-{number}" for number in range(cluster.spec.stores)}
        mine = {name for name in self._stores if name.rpartition("-")[0] == cluster.metadata.name}
        for name in sorted((wanted | mine) & down & set(self._stores)):
            await self._stores.pop(name).stop(signal.SIGKILL)
        missing = sorted(wanted - down - set(self._stores))
        for name in missing:
            self._stores[name] = _Store(name, cluster, self._layout, self._ports_of(name), endpoint)
        await asyncio.gather(*(self._stores[name].start() for name in missing))

    async def _retire(self, cluster: StoreCluster, metastore: EtcdMetastore) -> None:
        going = leaving(cluster, self._stores)
        if not going:
            return
        keys = Keys(namespace=cluster.metadata.namespace, store_cluster=cluster.metadata.name)
        found = await metastore.range(keys.assignments())
        for name in sorted(going):
            if any(msgspec.json.encode(name) in kv.value for kv in found.kvs):
                continue
            states = await metastore.range(keys.all_stores())
            decided = read_stores(states.kvs, keys).states
            if name in decided and decided[name].draining:
                log.info("store %s holds nothing any more and is stopped", name)
                await self._stores.pop(name).stop()
                shutil.rmtree(self._layout.store(name), ignore_errors=True)

    def _ports_of(self, name: str) -> StorePorts:
        if name not in self._ports:
            self._ports[name] = StorePorts(free_port(), free_port(), free_port(), free_port())
            self._layout.keep_ports(self._ports)
        return self._ports[name]

    async def _stop_everything(self) -> None:
        for controller in self._controllers.values():
            controller.cancel()
        await asyncio.gather(*self._controllers.values(), return_exceptions=True)
        await asyncio.gather(*(store.stop() for store in self._stores.values()))


async def serve(directory: Path) -> None:
    """Run the cluster of a directory until SIGTERM or SIGINT."""
    layout = Layout(directory)
    layout.make()
    if (running := layout.running()) is not None and running.pid != os.getpid():
        raise InvalidInputError(f"the cluster in {layout.root} runs already, as process {running.pid}")
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    running_task = asyncio.create_task(Supervisor(layout).run())
    stop = asyncio.create_task(asked.wait())
    try:
        await asyncio.wait((running_task, stop), return_when=asyncio.FIRST_COMPLETED)
        if running_task.done():
            running_task.result()
    finally:
        running_task.cancel()
        stop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running_task

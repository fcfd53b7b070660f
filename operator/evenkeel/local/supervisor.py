"""Runs a local cluster: etcd, for each StoreCluster its stores as pairs of processes, and a controller.

Level-based like everything: it looks at what StoreClusters ask for, whenever they change and every second, and brings
processes to that. Stores that are no longer asked for are emptied by the controller first, and stopped when they hold
nothing. A process that dies is started again, unless somebody said that it should be down (`evenkeel local kill`).
Where a StoreCluster asks its processes for something else, its stores are started anew, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from evenkeel.controller.controller import Controller
from evenkeel.errors import EvenkeelError, FencedError, NoSpaceError, UnreachableError
from evenkeel.local.child_processes import outlive
from evenkeel.local.cluster_directory import Layout, ProcessInfo, Running, StorePorts
from evenkeel.local.local_resources import NAMESPACE, ClusterResources, LocalResources
from evenkeel.local.store_processes import LOOPBACK, StorePair, engine_flags
from evenkeel.metastore.etcd_binary import find_etcd
from evenkeel.metastore.etcd_maintenance import Maintenance, ReliefPace
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer, free_port
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.metastore.metastore_api import Delete, Metastore, Txn
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import encode
from evenkeel.rebalancers.rebalancer_process import FOLDERS
from evenkeel.reconcile.known_stores import read_stores
from evenkeel.reconcile.store_states import leaving

__all__ = ["DOWN_ANNOTATION", "Supervisor", "asked_to_be_down", "serve"]

log = logging.getLogger(__name__)

DOWN_ANNOTATION: Final = "evenkeel.dev/down"
"""On a StoreCluster: names of stores whose processes are to be down, separated by commas (`evenkeel local kill`)."""
_LOOK_SECONDS: Final = 1.0
_RELIEF_SECONDS: Final = 5.0
_ETCD_ARGUMENTS: Final = (
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=30m",
    f"--quota-backend-bytes={8 << 30}",
)


def asked_to_be_down(cluster: StoreCluster) -> frozenset[str]:
    """Stores that somebody has killed."""
    return frozenset(filter(None, cluster.metadata.annotations.get(DOWN_ANNOTATION, "").split(",")))


class Supervisor:
    """Everything of one local cluster, in one event loop; `run` until cancelled."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ports = layout.ports()
        self._stores: dict[str, StorePair] = {}
        self._controllers: dict[str, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._said: Running | None = None

    async def run(self) -> None:
        """Bring everything up, and keep it so."""
        etcd = self._etcd()
        async with etcd, EtcdMetastore(EtcdSettings(endpoints=(etcd.endpoint,))) as metastore:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_keep_etcd(etcd))
                    tasks.create_task(_relieve_etcd(etcd))
                    tasks.create_task(self._listen(LocalResources(metastore)))
                    tasks.create_task(self._keep(metastore, etcd))
            finally:
                await self._stop_everything()

    def _etcd(self) -> EtcdServer:
        known = self._ports.etcd
        ports = known if known is not None and all(map(_free, known)) else (free_port(), free_port())
        self._ports.etcd = ports
        self._layout.keep_ports(self._ports)
        return EtcdServer(self._layout.etcd, binary=find_etcd(), ports=ports, extra_args=_ETCD_ARGUMENTS)

    async def _listen(self, resources: LocalResources) -> None:
        while True:
            with contextlib.suppress(UnreachableError):
                async for _ in resources.changes():
                    self._news.set()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _keep(self, metastore: Metastore, etcd: EtcdServer) -> None:
        while True:
            self._news.clear()
            try:
                await self._look(metastore, etcd.endpoint)
                self._say(etcd)
            except (UnreachableError, OSError) as error:
                log.warning("processes stay as they are for now: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._news.wait()

    def _say(self, etcd: EtcdServer) -> None:
        processes = {name: info for pair in self._stores.values() for name, info in pair.infos().items()}
        processes["etcd"] = ProcessInfo(etcd.pid, 0)
        running = Running(pid=os.getpid(), etcd=etcd.endpoint, processes=processes)
        if running != self._said:
            self._layout.say_running(running)
            self._said = running

    # One look

    async def _look(self, metastore: Metastore, etcd: str) -> None:
        resources = LocalResources(metastore)
        for cluster in await resources.all_of(StoreCluster):
            if cluster.metadata.deletion_timestamp:
                await self._dissolve(cluster, resources, metastore)
                continue
            await self._bring_down(cluster)
            await self._retire(cluster, metastore)
            await self._bring_up(cluster, etcd)
            await self._renew(cluster, etcd, metastore)
            self._keep_controller(cluster, resources, metastore)

    async def _bring_up(self, cluster: StoreCluster, etcd: str) -> None:
        wanted = {f"{cluster.metadata.name}-{number}" for number in range(cluster.spec.stores)}
        missing = sorted(wanted - asked_to_be_down(cluster) - self._stores.keys())
        for name in missing:
            self._stores[name] = StorePair(name, cluster, self._layout, self._ports_of(name), etcd)
        await asyncio.gather(*(self._stores[name].start() for name in missing))

    async def _renew(self, cluster: StoreCluster, etcd: str, metastore: Metastore) -> None:
        """Start one store anew whose processes were told something else, while all others are there."""
        outdated = [name for name in self._of(cluster) if self._stores[name].flags != engine_flags(cluster)]
        if not outdated:
            return
        keys = _keys(cluster)
        there = read_stores((await metastore.range(keys.all_stores())).kvs, keys).registered
        name = min(outdated, key=lambda name: (name in there, name))
        if self._of(cluster) - there.keys() - {name}:
            return
        log.info("store %s is started anew, for its StoreCluster has changed", name)
        await self._stores[name].stop()
        self._stores[name] = StorePair(name, cluster, self._layout, self._ports_of(name), etcd)
        await self._stores[name].start()

    async def _bring_down(self, cluster: StoreCluster) -> None:
        down = sorted(self._of(cluster) & asked_to_be_down(cluster))
        await asyncio.gather(*(self._stores[name].kill() for name in down))
        for name in down:
            del self._stores[name]

    async def _retire(self, cluster: StoreCluster, metastore: Metastore) -> None:
        """Stop stores that are to go and hold nothing; then nothing of them is left."""
        going = leaving(cluster, self._of(cluster))
        if not going:
            return
        keys = _keys(cluster)
        decided = read_stores((await metastore.range(keys.all_stores())).kvs, keys).states
        found = await metastore.range(keys.assignments())
        for name in sorted(going):
            named = any(encode(name) in kv.value for kv in found.kvs)
            if not named and name in decided and decided[name].draining:
                log.info("store %s holds nothing any more and is stopped", name)
                await self._end((name,))

    async def _dissolve(self, cluster: StoreCluster, resources: LocalResources, metastore: Metastore) -> None:
        """Take away a StoreCluster that holds no tables."""
        name = cluster.metadata.name
        if (controller := self._controllers.pop(name, None)) is not None:
            controller.cancel()
            await asyncio.gather(controller, return_exceptions=True)
        await self._end(self._of(cluster))
        await metastore.txn(Txn(success=(Delete(_keys(cluster).root, prefix=True),)))
        await resources.remove(cluster)
        log.info("StoreCluster %s is gone", name)

    async def _end(self, names: Iterable[str]) -> None:
        """Stop stores for good, their data included."""
        pairs = [self._stores.pop(name) for name in sorted(names)]
        await asyncio.gather(*(pair.stop() for pair in pairs))
        for pair in pairs:
            pair.wipe()
            self._ports.stores.pop(pair.name, None)
        self._layout.keep_ports(self._ports)

    def _keep_controller(self, cluster: StoreCluster, resources: LocalResources, metastore: Metastore) -> None:
        name = cluster.metadata.name
        running = self._controllers.get(name)
        if running is not None:
            if not running.done():
                return
            if not isinstance(running.exception(), FencedError):
                running.result()
            log.warning("the controller of StoreCluster %s begins anew: %s", name, running.exception())
        controller = Controller(
            metastore,
            keys=_keys(cluster),
            resources=ClusterResources(resources, name),
            holder=f"local-{os.getpid()}",
        )
        self._controllers[name] = asyncio.create_task(controller.run())

    def _of(self, cluster: StoreCluster) -> set[str]:
        """The cluster's stores that run."""
        return {name for name in self._stores if name.rpartition("-")[0] == cluster.metadata.name}

    def _ports_of(self, name: str) -> StorePorts:
        """The ports a store had before, unless somebody else has taken one."""
        known = self._ports.stores.get(name)
        if known is None or not all(map(_free, (known.peers, known.http, known.flight, known.store_http))):
            known = StorePorts(free_port(), free_port(), free_port(), free_port())
            self._ports.stores[name] = known
            self._layout.keep_ports(self._ports)
        return known

    async def _stop_everything(self) -> None:
        for controller in self._controllers.values():
            controller.cancel()
        await asyncio.gather(*self._controllers.values(), return_exceptions=True)
        await asyncio.gather(*(store.stop() for store in self._stores.values()))


async def _keep_etcd(etcd: EtcdServer) -> None:
    """Start etcd again where it has ended."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if etcd.pid is None:
            log.warning("etcd has ended and is started again")
            try:
                await etcd.start()
            except EvenkeelError as error:
                log.warning("%s", error)


async def _relieve_etcd(etcd: EtcdServer) -> None:
    """Where etcd has used up its quota, free space: nobody else would, and every change would wait for it."""
    pace = ReliefPace()
    while True:
        await asyncio.sleep(_RELIEF_SECONDS)
        if not pace.due():
            continue
        try:
            async with Maintenance(etcd.settings()) as maintenance:
                raised = await maintenance.relieve()
        except NoSpaceError as error:
            raised = True
            log.warning("etcd still refuses writes: %s", error)
        except EvenkeelError as error:
            raised = False
            log.warning("whether etcd has space cannot be told: %s", error)
        if raised:
            pace.attempted()


def _keys(cluster: StoreCluster) -> Keys:
    return Keys(namespace=NAMESPACE, store_cluster=cluster.metadata.name)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


async def serve(directory: Path, *, until: int | None = None) -> None:
    """Run the cluster of a directory until SIGTERM or SIGINT, or until process `until` has ended."""
    layout = Layout(directory)
    layout.make()
    with layout.held() as before:
        layout.make_sockets()
        os.environ[FOLDERS] = str(layout.rebalancers)
        asked = _asked(until)
        if before is not None:
            await outlive(before, layout.root)
        running = asyncio.create_task(Supervisor(layout).run())
        stop = asyncio.create_task(asked.wait())
        try:
            await asyncio.wait((running, stop), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            running.cancel()
            stop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


def _asked(until: int | None) -> asyncio.Event:
    """What is set when the cluster is to stop."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    if until is not None:
        try:
            loop.add_reader(os.pidfd_open(until), asked.set)
        except ProcessLookupError:
            asked.set()
    return asked

"""The supervisor of a local cluster: runs etcd, the stores of all StoreClusters, and a controller for each.

It is level-based: it reconciles the processes with the StoreClusters whenever they change and every second. The
controller drains stores that are no longer desired; the supervisor stops them when they are empty. A process that exits
is restarted, unless its store is marked as down (`evenkeel local kill`). When the flags of the stores change, they are
restarted one by one.
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
from evenkeel.local.child_processes import await_orphans
from evenkeel.local.cluster_directory import Layout, ProcessInfo, Running, StorePorts
from evenkeel.local.local_resources import NAMESPACE, ClusterResources, LocalResources
from evenkeel.local.store_processes import LOOPBACK, StorePair, engine_flags
from evenkeel.metastore.etcd_binary import find_etcd
from evenkeel.metastore.etcd_maintenance import Maintenance, ReliefSchedule
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

__all__ = ["DOWN_ANNOTATION", "Supervisor", "serve", "stores_kept_down"]

log = logging.getLogger(__name__)

DOWN_ANNOTATION: Final = "evenkeel.dev/down"
"""Annotation of a StoreCluster: comma-separated names of stores that stay down (`evenkeel local kill`)."""
_RESYNC_SECONDS: Final = 1.0
_RELIEF_SECONDS: Final = 5.0
_ETCD_ARGUMENTS: Final = (
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=30m",
    f"--quota-backend-bytes={8 << 30}",
)


def stores_kept_down(cluster: StoreCluster) -> frozenset[str]:
    """Return the stores that are marked as down."""
    return frozenset(filter(None, cluster.metadata.annotations.get(DOWN_ANNOTATION, "").split(",")))


class Supervisor:
    """Runs one local cluster in one event loop."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ports = layout.ports()
        self._stores: dict[str, StorePair] = {}
        self._controllers: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._published: Running | None = None

    async def run(self) -> None:
        """Run the cluster until cancelled."""
        etcd = self._etcd()
        async with etcd, EtcdMetastore(EtcdSettings(endpoints=(etcd.endpoint,))) as metastore:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_restart_etcd(etcd))
                    tasks.create_task(_relieve_etcd(etcd))
                    tasks.create_task(self._watch(LocalResources(metastore)))
                    tasks.create_task(self._reconcile_forever(metastore, etcd))
            finally:
                await self._stop_all()

    def _etcd(self) -> EtcdServer:
        known = self._ports.etcd
        ports = known if known is not None and all(map(_free, known)) else (free_port(), free_port())
        self._ports.etcd = ports
        self._layout.save_ports(self._ports)
        return EtcdServer(self._layout.etcd, binary=find_etcd(), ports=ports, extra_args=_ETCD_ARGUMENTS)

    async def _watch(self, resources: LocalResources) -> None:
        while True:
            with contextlib.suppress(UnreachableError):
                async for _ in resources.changes():
                    self._changed.set()
            await asyncio.sleep(_RESYNC_SECONDS)

    async def _reconcile_forever(self, metastore: Metastore, etcd: EtcdServer) -> None:
        while True:
            self._changed.clear()
            try:
                await self._reconcile(metastore, etcd.endpoint)
                self._publish(etcd)
            except (UnreachableError, OSError) as error:
                log.warning("reconciling the processes failed; retrying in %g s: %s", _RESYNC_SECONDS, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESYNC_SECONDS):
                    await self._changed.wait()

    def _publish(self, etcd: EtcdServer) -> None:
        processes = {name: info for pair in self._stores.values() for name, info in pair.infos().items()}
        processes["etcd"] = ProcessInfo(etcd.pid, 0)
        running = Running(pid=os.getpid(), etcd=etcd.endpoint, processes=processes)
        if running != self._published:
            self._layout.publish_running(running)
            self._published = running

    async def _reconcile(self, metastore: Metastore, etcd: str) -> None:
        resources = LocalResources(metastore)
        for cluster in await resources.all_of(StoreCluster):
            if cluster.metadata.deletion_timestamp:
                await self._delete_cluster(cluster, resources, metastore)
                continue
            await self._kill_stores(cluster)
            await self._remove_drained_stores(cluster, metastore)
            await self._start_stores(cluster, etcd)
            await self._restart_outdated_store(cluster, etcd, metastore)
            self._ensure_controller(cluster, resources, metastore)

    async def _start_stores(self, cluster: StoreCluster, etcd: str) -> None:
        desired = {f"{cluster.metadata.name}-{number}" for number in range(cluster.spec.stores)}
        missing = sorted(desired - stores_kept_down(cluster) - self._stores.keys())
        for name in missing:
            self._stores[name] = StorePair(name, cluster, self._layout, self._ports_of(name), etcd)
        await asyncio.gather(*(self._stores[name].start() for name in missing))

    async def _restart_outdated_store(self, cluster: StoreCluster, etcd: str, metastore: Metastore) -> None:
        """Restart one store whose flags have changed, if all others are registered."""
        outdated = [name for name in self._of(cluster) if self._stores[name].flags != engine_flags(cluster)]
        if not outdated:
            return
        keys = _keys(cluster)
        registered = read_stores((await metastore.range(keys.all_stores())).kvs, keys).registered
        name = min(outdated, key=lambda name: (name in registered, name))
        if self._of(cluster) - registered.keys() - {name}:
            return
        log.info("restarting store %s because its StoreCluster has changed", name)
        await self._stores[name].stop()
        self._stores[name] = StorePair(name, cluster, self._layout, self._ports_of(name), etcd)
        await self._stores[name].start()

    async def _kill_stores(self, cluster: StoreCluster) -> None:
        down = sorted(self._of(cluster) & stores_kept_down(cluster))
        await asyncio.gather(*(self._stores[name].kill() for name in down))
        for name in down:
            del self._stores[name]

    async def _remove_drained_stores(self, cluster: StoreCluster, metastore: Metastore) -> None:
        """Stop and remove stores that are no longer desired and hold no replica."""
        going = leaving(cluster, self._of(cluster))
        if not going:
            return
        keys = _keys(cluster)
        decided = read_stores((await metastore.range(keys.all_stores())).kvs, keys).states
        found = await metastore.range(keys.assignments())
        for name in sorted(going):
            named = any(encode(name) in kv.value for kv in found.kvs)
            if not named and name in decided and decided[name].draining:
                log.info("store %s is drained; stopping it", name)
                await self._remove_stores((name,))

    async def _delete_cluster(self, cluster: StoreCluster, resources: LocalResources, metastore: Metastore) -> None:
        """Finalize the deletion of a StoreCluster, which has no tables."""
        name = cluster.metadata.name
        if (controller := self._controllers.pop(name, None)) is not None:
            controller.cancel()
            await asyncio.gather(controller, return_exceptions=True)
        await self._remove_stores(self._of(cluster))
        await metastore.txn(Txn(success=(Delete(_keys(cluster).root, prefix=True),)))
        await resources.remove(cluster)
        log.info("StoreCluster %s is deleted", name)

    async def _remove_stores(self, names: Iterable[str]) -> None:
        """Stop stores and remove their data."""
        pairs = [self._stores.pop(name) for name in sorted(names)]
        await asyncio.gather(*(pair.stop() for pair in pairs))
        for pair in pairs:
            pair.wipe()
            self._ports.stores.pop(pair.name, None)
        self._layout.save_ports(self._ports)

    def _ensure_controller(self, cluster: StoreCluster, resources: LocalResources, metastore: Metastore) -> None:
        name = cluster.metadata.name
        running = self._controllers.get(name)
        if running is not None:
            if not running.done():
                return
            if not isinstance(running.exception(), FencedError):
                running.result()
            log.warning("restarting the controller of StoreCluster %s: %s", name, running.exception())
        controller = Controller(
            metastore,
            keys=_keys(cluster),
            resources=ClusterResources(resources, name),
            holder=f"local-{os.getpid()}",
        )
        self._controllers[name] = asyncio.create_task(controller.run())

    def _of(self, cluster: StoreCluster) -> set[str]:
        """Return the running stores of a StoreCluster."""
        return {name for name in self._stores if name.rpartition("-")[0] == cluster.metadata.name}

    def _ports_of(self, name: str) -> StorePorts:
        """Return the previous ports of a store, or new ones if another process uses one of them."""
        known = self._ports.stores.get(name)
        if known is None or not all(map(_free, (known.peers, known.http, known.flight, known.store_http))):
            known = StorePorts(free_port(), free_port(), free_port(), free_port())
            self._ports.stores[name] = known
            self._layout.save_ports(self._ports)
        return known

    async def _stop_all(self) -> None:
        for controller in self._controllers.values():
            controller.cancel()
        await asyncio.gather(*self._controllers.values(), return_exceptions=True)
        await asyncio.gather(*(store.stop() for store in self._stores.values()))


async def _restart_etcd(etcd: EtcdServer) -> None:
    """Restart etcd whenever it exits."""
    while True:
        await asyncio.sleep(_RESYNC_SECONDS)
        if etcd.pid is None:
            log.warning("etcd exited; restarting it")
            try:
                await etcd.start()
            except EvenkeelError as error:
                log.warning("%s", error)


async def _relieve_etcd(etcd: EtcdServer) -> None:
    """Free space in etcd when it exceeds its quota, because it refuses all writes until then."""
    schedule = ReliefSchedule()
    while True:
        await asyncio.sleep(_RELIEF_SECONDS)
        if not schedule.due():
            continue
        try:
            async with Maintenance(etcd.settings()) as maintenance:
                raised = await maintenance.relieve()
        except NoSpaceError as error:
            raised = True
            log.warning("etcd still refuses writes: %s", error)
        except EvenkeelError as error:
            raised = False
            log.warning("cannot check the space of etcd: %s", error)
        if raised:
            schedule.attempted()


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
        stop_requested = _stop_event(until)
        if before is not None:
            await await_orphans(before, layout.root)
        running = asyncio.create_task(Supervisor(layout).run())
        stop = asyncio.create_task(stop_requested.wait())
        try:
            await asyncio.wait((running, stop), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            running.cancel()
            stop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


def _stop_event(until: int | None) -> asyncio.Event:
    """Return an event that is set when the cluster is to stop."""
    loop, requested = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, requested.set)
    if until is not None:
        try:
            loop.add_reader(os.pidfd_open(until), requested.set)
        except ProcessLookupError:
            requested.set()
    return requested

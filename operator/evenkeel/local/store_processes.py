"""The two processes of a store: the raft sidecar and the table engine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from typing import Final

from evenkeel.local.child_processes import Child
from evenkeel.local.cluster_directory import Layout, ProcessInfo, StorePorts
from evenkeel.model.storecluster import StoreCluster

__all__ = ["LOOPBACK", "StorePair", "engine_flags"]

LOOPBACK: Final = "127.0.0.1"
_LEAST_MEMORY: Final = 256 << 20


def engine_flags(cluster: StoreCluster) -> tuple[str, ...]:
    """Return the flags of the table engine that depend on the StoreCluster; a change of them restarts the store."""
    return ("--heal", "no") if cluster.spec.healing == "Manual" else ()


class StorePair:
    """The processes and the data of a store."""

    def __init__(self, name: str, cluster: StoreCluster, layout: Layout, ports: StorePorts, etcd: str) -> None:
        self.name = name
        self._data = layout.store(name)
        common = (
            *("--store", name, "--store-cluster", cluster.metadata.name, "--etcd-endpoints", etcd),
            *("--socket", str(layout.socket(name)), "--log-format", "console"),
        )
        self.flags = engine_flags(cluster)
        self.sidecar = Child(
            f"{name} raft",
            "evenkeel_raft.process.main",
            (
                *common,
                *("--data", str(self._data / "raft"), "--flight", f"grpc://{LOOPBACK}:{ports.flight}"),
                *("--listen", f"{LOOPBACK}:{ports.peers}", "--http", f"{LOOPBACK}:{ports.http}"),
            ),
            log=layout.log(f"{name}.raft"),
        )
        self.engine = Child(
            f"{name} store",
            "evenkeel_store.process.main",
            (
                *common,
                *("--data", str(self._data / "store"), "--memory", str(_memory(cluster))),
                *("--listen", f"{LOOPBACK}:{ports.flight}", "--http", f"{LOOPBACK}:{ports.store_http}"),
                *self.flags,
            ),
            log=layout.log(f"{name}.store"),
        )

    def infos(self) -> dict[str, ProcessInfo]:
        """Return the state of both processes by name."""
        return {child.name: child.info for child in (self.sidecar, self.engine)}

    async def start(self) -> None:
        """Start both processes."""
        self._data.mkdir(parents=True, exist_ok=True)
        await self.sidecar.start()
        await self.engine.start()

    async def stop(self) -> None:
        """Stop both processes; the engine first, so that it can hand over leadership through its sidecar."""
        await self.engine.stop()
        await self.sidecar.stop()

    async def kill(self) -> None:
        """Kill both processes at once, so that the sidecar cannot hand over leadership first."""
        pair = (self.sidecar, self.engine)
        for child in pair:
            child.send(signal.SIGKILL)
        await asyncio.gather(*(child.stop(signal.SIGKILL) for child in pair))

    def wipe(self) -> None:
        """Remove the data of a removed store."""
        shutil.rmtree(self._data, ignore_errors=True)


def _memory(cluster: StoreCluster) -> int:
    """Return the memory of the database: its share of half the machine, or the limit of the StoreCluster if lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = max(_LEAST_MEMORY, machine // 2 // cluster.spec.stores)
    limit = cluster.spec.resources.store.limits.get("memory")
    return share if limit is None else max(_LEAST_MEMORY, min(share, limit.units))

"""The stores of a local cluster: for each a raft sidecar and a table store, as processes."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Final, NamedTuple

from evenkeel.local.children import Child
from evenkeel.local.layout import Layout, ProcessInfo, StorePorts
from evenkeel.model.storecluster import StoreCluster

__all__ = ["LOOPBACK", "Asked", "StorePair", "asked_of"]

LOOPBACK: Final = "127.0.0.1"
_LEAST_MEMORY: Final = 256 << 20


class Asked(NamedTuple):
    """What a StoreCluster asks of the processes themselves, as flags: they are started anew when it changes."""

    sidecar: tuple[str, ...]
    engine: tuple[str, ...]


def asked_of(cluster: StoreCluster) -> Asked:
    """Return what processes are told."""
    throttles = cluster.spec.throttles
    rate = throttles.bytes_per_second
    return Asked(
        sidecar=(
            *("--snapshots-at-once", str(throttles.max_concurrent_moves)),
            *(("--bytes-per-second", str(rate.units)) if rate is not None else ()),
        ),
        engine=("--heal", "no") if cluster.spec.healing == "Manual" else (),
    )


class StorePair:
    """One store's processes, and its data."""

    def __init__(self, name: str, cluster: StoreCluster, layout: Layout, ports: StorePorts, etcd: str) -> None:
        self.name = name
        self._data = layout.store(name)
        common = (
            *("--store", name, "--store-cluster", cluster.metadata.name, "--etcd-endpoints", etcd),
            *("--socket", str(layout.socket(name)), "--log-format", "console"),
        )
        self.asked = asked_of(cluster)
        self.sidecar = Child(
            f"{name} raft",
            "evenkeel_raft.process.main",
            (
                *common,
                *self.asked.sidecar,
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
                *self.asked.engine,
            ),
            log=layout.log(f"{name}.store"),
        )

    def infos(self) -> dict[str, ProcessInfo]:
        """How its processes are."""
        return {child.name: child.info for child in (self.sidecar, self.engine)}

    async def start(self) -> None:
        """Start both processes."""
        self._data.mkdir(parents=True, exist_ok=True)
        await self.sidecar.start()
        await self.engine.start()

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End both; the store first, so that it can hand over through its sidecar."""
        await self.engine.stop(how)
        await self.sidecar.stop(how)

    def wipe(self) -> None:
        """Remove the data of a store that is gone for good."""
        shutil.rmtree(self._data, ignore_errors=True)


def _memory(cluster: StoreCluster) -> int:
    """Bytes for the database: its share of half the machine, or less where the StoreCluster says less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = max(_LEAST_MEMORY, machine // 2 // cluster.spec.stores)
    limit = cluster.spec.resources.store.limits.get("memory")
    return share if limit is None else max(_LEAST_MEMORY, min(share, limit.units))

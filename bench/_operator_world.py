"""The operator's environment: a control plane, a thousand kwok nodes, the stores' etcd, and the operator process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench._operator_sidecars import STORE_CLUSTER
from e2e.cluster.binaries import ROOT, find
from e2e.cluster.control_plane import api_server
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.processes import Daemon
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.kubeconfig import load_configuration
from evenkeel.kube.object_kinds import SERVICE_ACCOUNT, STATEFUL_SET, TABLE, Object
from evenkeel.kube.object_kinds import STORE_CLUSTER as CLUSTERS
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer, free_port
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.protocol.keys import Keys

__all__ = ["NAMESPACE", "World", "all_of", "settle", "table", "until", "world"]

NAMESPACE: Final = "shop"
_AT_ONCE: Final = 16
_TIMEOUT: Final = 600.0
_CALM: Final = 8
"""Consecutive idle polls, about two per second, before the operator counts as idle."""


class World(NamedTuple):
    """The running environment."""

    kube: Kube
    metastore: EtcdMetastore
    keys: Keys
    operator: Daemon
    kubeconfig: Path
    pages: int
    """The operator's HTTP port."""

    def resident(self) -> float:
        """Return the operator's resident memory in MiB."""
        pages = int(Path(f"/proc/{self.operator.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    async def requests(self) -> Counter[str]:
        """Return the operator's requests to the API server so far, by kind, without those for its Lease."""
        found = Counter[str]()
        for labels, value in await self._metric("api_requests_total"):
            if 'kind="leases"' not in labels:
                found[_kind(labels)] += round(value)
        return found

    async def at_rest(self) -> bool:
        """Whether the operator has nothing to reconcile or write."""
        waiting = [await self._metric(name) for name in ("queued", "waiting_statuses", "busy_controllers")]
        orders = await self.metastore.range(self.keys.leader_targets())
        return not orders.kvs and not any(value for found in waiting for _, value in found)

    async def _metric(self, name: str) -> list[tuple[str, float]]:
        """Return the metric's values with their labels."""
        text = await asyncio.to_thread(_read, f"http://127.0.0.1:{self.pages}/metrics")
        found = re.findall(rf"^evenkeel_operator_{name}({{.*}})? (\S+)$", text, re.MULTILINE)
        return [(labels, float(value)) for labels, value in found]

    def processor_seconds(self) -> float:
        """Return the operator's CPU time so far."""
        fields = Path(f"/proc/{self.operator.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kind(labels: str) -> str:
    found = re.search('kind="([^"]*)"', labels)
    return found[1] if found is not None else ""


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


async def until(what: str, condition: Callable[[], Awaitable[Any]]) -> Any:
    """Poll until the condition returns a true value; return it."""
    async with asyncio.timeout(_TIMEOUT):
        while not (answer := await condition()):  # noqa: ASYNC110 - depends on other processes
            await asyncio.sleep(0.2)
    return answer


async def all_of(work: Iterable[Awaitable[Any]]) -> None:
    """Await everything, a few at a time."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(thing: Awaitable[Any]) -> None:
        async with room:
            await thing

    await asyncio.gather(*map(one, work))


async def settle(made: World) -> None:
    """Wait until the operator is idle and has sent no request for longer than a status update can be delayed."""
    calm, before = 0, Counter[str]()

    async def calm_for_long() -> bool:
        nonlocal calm, before
        now = await made.requests()
        calm = calm + 1 if now == before and await made.at_rest() else 0
        before = now
        await asyncio.sleep(0.3)
        return calm >= _CALM

    await until("the operator at rest", calm_for_long)


@contextlib.asynccontextmanager
async def world(folder: Path, *, stores: int) -> AsyncIterator[World]:
    """Start everything with one StoreCluster, one store per node, and wait until all are Ready."""
    with api_server(folder) as plane:
        _install(plane.kubectl)
        async with EtcdServer(folder / "stores-etcd") as etcd:
            daemons = {name: Daemon(name, folder=folder) for name in ("kwok", "sidecars", "operator")}
            kube = Kube(await load_configuration(plane.kubeconfig), manager="bench")
            metastore = EtcdMetastore(EtcdSettings(endpoints=(etcd.endpoint,)))
            try:
                pages = _start(daemons, plane.kubeconfig, etcd.endpoint, stores=stores)
                keys = Keys(namespace=NAMESPACE, store_cluster=STORE_CLUSTER)
                made = World(kube, metastore, keys, daemons["operator"], plane.kubeconfig, pages)
                await _populate(kube, stores)
                yield made
            finally:
                for daemon in daemons.values():
                    daemon.kill()
                await metastore.close()
                await kube.close()


def _install(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", f"--filename={ROOT / 'crds'}")
    kubectl("wait", "--for=condition=Established", f"--filename={ROOT / 'crds'}")
    kubectl("create", "namespace", NAMESPACE)


def _start(daemons: dict[str, Daemon], kubeconfig: Path, etcd: str, *, stores: int) -> int:
    pages = free_port()
    stages = ROOT / "bench" / "_operator_kwok.yaml"
    daemons["kwok"].start(
        [find("kwok"), f"--kubeconfig={kubeconfig}", f"--config={stages}", "--manage-all-nodes=true"], dies_with_us=True
    )
    daemons["sidecars"].start(
        [sys.executable, "-m", "bench._operator_sidecars", etcd, NAMESPACE, str(stores)], dies_with_us=True
    )
    daemons["operator"].start(
        [
            *(Path(sys.executable).parent / "evenkeel-operator", f"--kubeconfig={kubeconfig}"),
            *(f"--own-namespace={NAMESPACE}", f"--etcd-endpoints={etcd}", f"--http=127.0.0.1:{pages}"),
            *("--store-image=store:1", "--tls=no", "--log-format=console"),
        ],
        dies_with_us=True,
    )
    return pages


async def _populate(kube: Kube, stores: int) -> None:
    """Create nodes, a StoreCluster, and its pods, because nothing else schedules pods here."""
    names = [f"{STORE_CLUSTER}-{number}" for number in range(stores)]
    await all_of(kube.create(_node(f"node-{name}", number)) for number, name in enumerate(names))
    metadata = {"name": STORE_CLUSTER, "namespace": NAMESPACE}
    spec = {"stores": stores, "storage": {"size": "1Gi"}}
    await kube.create({"apiVersion": CLUSTERS.api_version, "kind": CLUSTERS.name, "metadata": metadata, "spec": spec})
    found = await until("a StatefulSet", lambda: kube.get(STATEFUL_SET, STORE_CLUSTER, NAMESPACE))
    account = found["spec"]["template"]["spec"]["serviceAccountName"]
    await until("its account", lambda: kube.get(SERVICE_ACCOUNT, account, NAMESPACE))
    labels = found["spec"]["template"]["metadata"]["labels"]
    await all_of(kube.create(_pod(name, labels, account)) for name in names)

    async def ready() -> bool:
        cluster = await kube.get(CLUSTERS, STORE_CLUSTER, NAMESPACE)
        return bool((cluster or {}).get("status", {}).get("readyStores") == stores)

    await until("all stores ready", ready)


def _node(name: str, number: int) -> Object:
    labels = {"topology.kubernetes.io/zone": f"zone-{number % 3}"}
    taint = {"key": "kwok", "effect": "NoSchedule"}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [taint]}}


def _pod(name: str, labels: dict[str, str], account: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "nodeName": f"node-{name}",
            "containers": [{"name": "store", "image": "none"}],
            "serviceAccountName": account,
            "automountServiceAccountToken": False,
        },
    }


def table(name: str, *, partitions: int) -> Object:
    """Return a table with three replicas."""
    schema = {"columns": [{"name": "id", "type": "int64", "nullable": False}], "primaryKey": ["id"]}
    spec = {"storeCluster": STORE_CLUSTER, "partitions": partitions, "replicas": 3, "schema": schema}
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": TABLE.api_version, "kind": TABLE.name, "metadata": metadata, "spec": spec}

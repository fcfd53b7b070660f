"""The operator on a real API server and a real etcd, with modelled stores, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from e2e.cluster.kubectl import Kubectl, holds
from evenkeel.errors import ApiUnreachableError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.kubeconfig import load_configuration
from evenkeel.kube.object_kinds import PARTITION_ASSIGNMENT, POD, STORE_CLUSTER, TABLE, Kind, Object
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import encode
from evenkeel.runtime.flags import Endpoint
from evenkeel_operator.manifests.pod_settings import PodSettings
from evenkeel_operator.process.leader_term import LeaderTermSettings
from evenkeel_operator.process.operator_options import OperatorOptions
from evenkeel_operator.process.operator_process import Operator
from tests.kubernetes.pods import Pods
from tests.metastore.support import settings_for

WITHIN = 60.0
"""Much more than any step takes, for slow machines."""


class World:
    """One namespace, and everything that runs in it."""

    def __init__(self, kubectl: Kubectl, kube: Kube, namespace: str, etcd: str, folder: Path) -> None:
        self.kubectl = kubectl
        self.kube = kube
        self.namespace = namespace
        self.etcd = etcd
        self.folder = folder
        self.metastore = EtcdMetastore(settings_for(etcd))
        self.pods = Pods(kube, namespace, etcd)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # Operators

    def options(self, name: str, **changes: Any) -> OperatorOptions:
        """Return the options of an operator of this namespace."""
        settings: dict[str, Any] = {
            "identity": name,
            "own_namespace": self.namespace,
            "namespaces": (self.namespace,),
            "kubeconfig": self.kubectl.kubeconfig,
            "seed_secret": "seed",
            "etcd": settings_for(self.etcd),
            "pods": PodSettings(image="store:1", tls=False, lease_seconds=2),
            "folder": self.folder / name,
            "nodes": False,
        }
        return OperatorOptions(
            term=LeaderTermSettings(**(settings | changes)),
            lease="operator",
            lease_seconds=15,
            http=Endpoint("127.0.0.1", 0),
            log_level="info",
            log_format="console",
        )

    def start(self, name: str = "one", **changes: Any) -> Operator:
        """Start an operator."""
        operator = Operator(self.options(name, **changes))
        self._tasks[name] = asyncio.create_task(operator.run())
        return operator

    async def stop(self, name: str = "one") -> None:
        """Stop an operator."""
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def check(self) -> None:
        """Fail if a task has ended."""
        for task in self._tasks.values():
            if task.done():
                task.result()

    # Objects

    async def apply(self, *objects: Object) -> None:
        """Apply objects by kubectl, as a user does."""
        await asyncio.to_thread(self.kubectl.apply, *objects, namespace=self.namespace)

    async def run(self, *arguments: str) -> str:
        """Run kubectl in the namespace."""
        return await asyncio.to_thread(self.kubectl, *arguments, f"--namespace={self.namespace}")

    async def get(self, kind: Kind, name: str) -> Object | None:
        return await self.kube.get(kind, name, self.namespace)

    async def until(self, what: str, condition: Callable[[], Awaitable[Any]], *, within: float = WITHIN) -> Any:
        """Wait for the first truthy answer, and return it."""
        answer: Any = None
        try:
            async with asyncio.timeout(within):
                while not (answer := await self._asked(condition)):
                    self.check()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{what}: not within {within:g} s; at last: {await self._picture()}") from None
        return answer

    async def _asked(self, condition: Callable[[], Awaitable[Any]]) -> Any:
        """Ask once; an unreachable API server counts as false."""
        try:
            return await condition()
        except ApiUnreachableError:
            return None

    async def quiet(self, counted: Callable[[], int], *, for_seconds: float) -> None:
        """Wait until a count stays the same for a while."""
        async with asyncio.timeout(WITHIN):
            while True:
                before = counted()
                await asyncio.sleep(for_seconds)
                if counted() == before:
                    return

    async def condition(self, kind: Kind, name: str, condition: str, *, status: str = "True", reason: str = "") -> Any:
        """Wait for a condition of the newest generation."""

        async def asked() -> Object | None:
            found = await self.get(kind, name)
            for entry in (found or {}).get("status", {}).get("conditions", ()):
                wanted = entry["type"] == condition and entry["status"] == status and entry["reason"].startswith(reason)
                if wanted and entry["observedGeneration"] == found["metadata"]["generation"]:  # type: ignore[index]
                    return found
            return None

        return await self.until(f"{kind.name} {name} {condition}={status} {reason}", asked)

    async def _picture(self) -> Any:
        subjects = [
            *(await self.kube.list(STORE_CLUSTER, self.namespace)).items,
            *(await self.kube.list(TABLE, self.namespace)).items,
        ]
        return [(subject["metadata"]["name"], subject.get("status")) for subject in subjects]

    async def keys(self, cluster: str = "main") -> list[str]:
        """Return all keys of a StoreCluster, without their common prefix."""
        root = Keys(namespace=self.namespace, store_cluster=cluster).root
        return [kv.key.removeprefix(root) for kv in (await self.metastore.range(root)).kvs]

    async def is_named(self, store: str, cluster: str = "main") -> bool:
        """Whether the metastore places a partition on that store; statuses may lag behind."""
        keys = Keys(namespace=self.namespace, store_cluster=cluster)
        return any(encode(store) in kv.value for kv in (await self.metastore.range(keys.assignments())).kvs)


@contextlib.asynccontextmanager
async def world(kubectl: Kubectl, namespace: str, etcd: str, folder: Path) -> AsyncIterator[World]:
    """A namespace with modelled nodes, for as long as the block lasts."""
    kube = Kube(await load_configuration(kubectl.kubeconfig))
    made = World(kubectl, kube, namespace, etcd, folder)
    made._tasks["pods"] = asyncio.create_task(made.pods.run())
    try:
        yield made
    finally:
        for name in [*made._tasks]:
            await made.stop(name)
        await made.metastore.close()
        await kube.close()


def store_cluster(stores: int = 3, **spec: Any) -> Object:
    """A StoreCluster `main`."""
    return {
        "apiVersion": STORE_CLUSTER.api_version,
        "kind": STORE_CLUSTER.name,
        "metadata": {"name": "main"},
        "spec": {"stores": stores, "storage": {"size": "1Gi"}, **spec},
    }


def table(name: str = "orders", *, partitions: int = 4, replicas: int = 3, **spec: Any) -> Object:
    """A Table on `main`."""
    return {
        "apiVersion": TABLE.api_version,
        "kind": TABLE.name,
        "metadata": {"name": name},
        "spec": {
            "storeCluster": "main",
            "partitions": partitions,
            "replicas": replicas,
            "schema": {"columns": [{"name": "id", "type": "int64", "nullable": False}], "primaryKey": ["id"]},
            **spec,
        },
    }


async def partitions_of(world: World, name: str = "orders-0") -> list[Object]:
    """Return the partitions in the status of a slice; none before its first status."""
    found = await world.get(PARTITION_ASSIGNMENT, name)
    partitions: list[Object] = (found or {}).get("status", {}).get("partitions", [])
    return partitions


async def make_table(world: World, stores: int = 3, **spec: Any) -> None:
    """Create a StoreCluster and, when all its stores are ready, a Table, which would be moved otherwise.

    Statuses are written independently; all of them include the table when this returns.
    """
    await world.apply(store_cluster(stores))
    await world.condition(STORE_CLUSTER, "main", "Ready")
    wanted = table(**spec)
    await world.apply(wanted)
    await world.condition(TABLE, "orders", "Balanced")
    partitions, replicas = wanted["spec"]["partitions"], wanted["spec"]["replicas"]

    async def reported() -> bool:
        stages = [one["stage"] for one in await partitions_of(world) if one.get("leader")]
        status = (await world.get(STORE_CLUSTER, "main") or {})["status"]
        counts = (status["tables"], status["replicas"])
        return stages == partitions * ["Stable"] and counts == (1, partitions * replicas)

    await world.until("all statuses include the table", reported)
    await world.condition(TABLE, "orders", "Ready")


async def uids(world: World) -> dict[str, str]:
    """Return the uid of every pod, by name."""
    pods = (await world.kube.list(POD, world.namespace)).items
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


__all__ = ["World", "holds", "make_table", "partitions_of", "store_cluster", "table", "uids", "world"]

"""Replaces the controllers of StatefulSets and budgets, the scheduler and nodes: pods with modelled stores.

A pod is Ready when its store's agent follows the metastore. Raft is modelled, agents and etcd are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from typing import Any

import msgspec

from evenkeel.errors import ApiConflictError, KubernetesError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import PERSISTENT_VOLUME_CLAIM, POD, POD_DISRUPTION_BUDGET, STATEFUL_SET, Kind, Object
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreRecord
from evenkeel_operator.manifests.object_names import MANAGED
from evenkeel_operator.reconcilers.pod_conditions import ready_pod
from evenkeel_raft.agent.agent import Agent
from evenkeel_raft.agent.agent_context import StoreIdentity
from evenkeel_raft.agent.agent_settings import AgentSettings
from evenkeel_raft.agent.agent_status import AgentState
from tests.metastore.support import settings_for
from tests.raft_agent.model import Disk, ModelGroups, Network

SETTINGS = AgentSettings(lease_seconds=4, report_seconds=0.2)
_volumes = itertools.count(1)


def _revision(found: Object) -> str:
    """The revision of the template for new pods."""
    template = msgspec.json.encode(found["spec"]["template"], order="sorted")
    return hashlib.sha256(template).hexdigest()[:10]


class _Store:
    def __init__(self, pods: Pods, pod: Object, disk: Disk) -> None:
        metadata = pod["metadata"]
        self.pod = metadata["uid"]
        self.cluster = metadata["labels"]["evenkeel.dev/store-cluster"]
        self.way = EtcdMetastore(settings_for(pods.etcd))
        self.groups = ModelGroups(pods.network, metadata["name"], disk)
        node = pod["spec"].get("nodeName", "")
        record = StoreRecord(volume=disk.volume, address=f"{metadata['name']}:7400", node=node)
        self.agent = Agent(
            self.way,
            keys=Keys(namespace=pods.namespace, store_cluster=self.cluster),
            groups=self.groups,
            me=StoreIdentity(metadata["name"], record, pod=metadata["uid"]),
            settings=SETTINGS,
        )
        self.task = asyncio.create_task(self.agent.run())

    async def stop(self, *, kill: bool = False) -> None:
        if not kill:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.agent.stop(), 5)
        self.groups.kill()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.way.close()


class Pods:
    """The pods of one namespace."""

    def __init__(self, kube: Kube, namespace: str, etcd: str, *, nodes: tuple[str, ...] = ()) -> None:
        self.kube = kube
        self.namespace = namespace
        self.etcd = etcd
        self.network = Network()
        self.network.dropped = lambda _: True
        self.held: set[str] = set()
        """Pods that are kept from starting."""
        self.stopped: list[str] = []
        """Pods whose stores were stopped, in order."""
        self.made = 0
        """Number of pods created."""
        self.fewest_ready = 1000
        """Lowest number of ready pods of a StatefulSet, once all had been ready."""
        self._complete: set[str] = set()
        self.nodes = nodes
        self._stores: dict[str, _Store] = {}
        self._disks: dict[str, Disk] = {}
        self._bound: dict[str, str] = {}
        """By pod, the uid of the claim of its disk."""
        self._retention: dict[str, str] = {}
        """By StatefulSet, its retention policy for claims of removed pods."""

    async def run(self) -> None:
        """Act as controllers and kubelets until cancelled."""
        try:
            while True:
                with contextlib.suppress(KubernetesError):
                    await self._reconcile()
                    await self._see_off()
                self.network.tick()
                await asyncio.sleep(0.02)
        finally:
            for store in self._stores.values():
                await store.stop(kill=True)

    def wipe(self, name: str) -> None:
        """Give the next pod of that name an empty volume."""
        self._disks[name] = Disk(f"{name}-{next(_volumes)}")

    async def kill(self, name: str) -> None:
        """Kill a store, and keep its pod from starting again."""
        self.held.add(name)
        await self._stores.pop(name).stop(kill=True)

    async def _reconcile(self) -> None:
        sets = await self.kube.list(STATEFUL_SET, self.namespace, selector=MANAGED)
        pods = {pod["metadata"]["name"]: pod for pod in (await self.kube.list(POD, self.namespace)).items}
        wanted: dict[str, Object] = {}
        for found in sets.items:
            if "deletionTimestamp" not in found["metadata"]:
                wanted |= {f"{found['metadata']['name']}-{i}": found for i in range(found["spec"]["replicas"])}
            policy = found["spec"].get("persistentVolumeClaimRetentionPolicy", {})
            self._retention[found["metadata"]["name"]] = policy.get("whenScaled", "Retain")
        for name in pods.keys() - wanted.keys():
            await self._remove(name)
        for name in sorted(wanted.keys() - pods.keys()):
            await self._create(name, wanted[name])
        for name, pod in pods.items():
            if name in self._stores and self._stores[name].pod != pod["metadata"]["uid"]:
                await self._stores.pop(name).stop()
            if name in wanted and name not in self._stores and name not in self.held:
                self._stores[name] = _Store(self, pod, await self._disk(name))
            if name in wanted:
                await self._report(pod)
        for found in sets.items:
            await self._publish(found, pods)

    async def _disk(self, name: str) -> Disk:
        """Return the disk of a pod's claim; a new claim of the same name is a new disk."""
        claim = await self.kube.get(PERSISTENT_VOLUME_CLAIM, f"data-{name}", self.namespace)
        assert claim is not None
        bound = self._bound.get(name)
        if bound is not None and bound != claim["metadata"]["uid"]:
            self.wipe(name)
        self._bound[name] = claim["metadata"]["uid"]
        return self._disks.setdefault(name, Disk(f"{name}-{next(_volumes)}"))

    async def _create(self, name: str, owner: Object) -> None:
        template: dict[str, Any] = owner["spec"]["template"]
        spec = {key: value for key, value in template["spec"].items() if key not in ("affinity", "volumes")}
        number = int(name.rpartition("-")[2])
        node = {"nodeName": self.nodes[number % len(self.nodes)]} if self.nodes else {}
        containers = [{"name": "store", "image": "none"}]
        pod_spec = {
            "containers": containers,
            "serviceAccountName": spec["serviceAccountName"],
            "automountServiceAccountToken": False,
            **node,
        }
        labels = {**template["metadata"]["labels"], "controller-revision-hash": _revision(owner)}
        metadata = {"name": name, "namespace": self.namespace, "labels": labels}
        self.made += 1
        await self.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec})
        claim = owner["spec"]["volumeClaimTemplates"][0]
        claimed = {**claim["metadata"], "name": f"data-{name}", "namespace": self.namespace}
        written = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": claimed, "spec": claim["spec"]}
        with contextlib.suppress(ApiConflictError):
            await self.kube.create(written)

    async def _remove(self, name: str) -> None:
        if name in self._stores:
            self.stopped.append(name)
            await self._stores.pop(name).stop()
        await self.kube.delete(POD, name, self.namespace, grace=0)
        if self._retention.get(name.rpartition("-")[0]) == "Delete":
            await self.kube.delete(PERSISTENT_VOLUME_CLAIM, f"data-{name}", self.namespace)

    async def _report(self, pod: Object) -> None:
        store = self._stores.get(pod["metadata"]["name"])
        ready = store is not None and store.agent.status().state is AgentState.FOLLOWING
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        if pod["status"].get("conditions", [{}])[0].get("status") == conditions[0]["status"]:
            return
        status = {"phase": "Running", "conditions": conditions}
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        await self.kube.set_status(POD, name, self.namespace, uid=uid, status=status)

    async def _publish(self, found: Object, pods: dict[str, Object]) -> None:
        """Write the status of a StatefulSet and of its budget, as their controllers do."""
        name, namespace = found["metadata"]["name"], self.namespace
        mine = [pod for pod in pods.values() if pod["metadata"]["name"].rpartition("-")[0] == name]
        status = {"replicas": len(mine), "observedGeneration": found["metadata"]["generation"]}
        await self._set(STATEFUL_SET, found, {**status, "updateRevision": _revision(found)})
        budget = await self.kube.get(POD_DISRUPTION_BUDGET, name, namespace)
        if budget is None or "maxUnavailable" not in budget["spec"]:
            return
        healthy, expected = len([pod for pod in mine if ready_pod(pod)]), found["spec"]["replicas"]
        desired = expected - budget["spec"]["maxUnavailable"]
        if healthy == expected:
            self._complete.add(name)
        if name in self._complete:
            self.fewest_ready = min(self.fewest_ready, healthy)
        allowed = {
            "observedGeneration": budget["metadata"]["generation"],
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": max(0, healthy - desired),
        }
        await self._set(POD_DISRUPTION_BUDGET, budget, allowed)

    async def _set(self, kind: Kind, subject: Object, status: Object) -> None:
        before, metadata = subject.get("status", {}), subject["metadata"]
        if any(before.get(name) != value for name, value in status.items()):
            await self.kube.set_status(kind, metadata["name"], self.namespace, uid=metadata["uid"], status=status)

    async def _see_off(self) -> None:
        """Remove deleted claims that no pod uses, as the protection controller does."""
        for claim in (await self.kube.list(PERSISTENT_VOLUME_CLAIM, self.namespace)).items:
            name, metadata = claim["metadata"]["name"].removeprefix("data-"), claim["metadata"]
            if "deletionTimestamp" in metadata and name not in self._stores:
                patch = {"metadata": {"finalizers": None}}
                await self.kube.merge(PERSISTENT_VOLUME_CLAIM, metadata["name"], self.namespace, patch)

    async def claims(self) -> list[str]:
        """Return the volume claims that are not being deleted."""
        found = (await self.kube.list(PERSISTENT_VOLUME_CLAIM, self.namespace)).items
        return sorted(c["metadata"]["name"] for c in found if "deletionTimestamp" not in c["metadata"])

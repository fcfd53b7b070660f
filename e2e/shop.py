"""A StoreCluster, a Table and a client that writes continuously, in one namespace."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.images import built
from e2e.cluster.kubectl import Kubectl, holds

__all__ = ["Found", "Shop"]

_PROGRAM = Path(__file__).with_name("client.py")
_API = "evenkeel.dev/v1alpha1"
_PAUSED = "evenkeel.dev/paused"


class Found(msgspec.Struct, kw_only=True):
    """What the client reports about its rows."""

    acknowledged: int
    failed: int = 0
    errors: list[str] = []
    longest: float = 0.0
    """Duration of the longest write, in seconds."""
    rows: int = 0
    distinct: int = 0
    missing: list[int] = []


class Shop:
    """The objects of one namespace. Several shops may share a namespace, or a StoreCluster."""

    def __init__(self, kubectl: Kubectl, namespace: str, *, cluster: str = "main", table: str = "orders") -> None:
        self.kubectl = kubectl
        self.namespace = namespace
        self.cluster = cluster
        self.table = table
        self.client = f"client-{table}"

    @property
    def table_name(self) -> str:
        """Name of the Table for kubectl."""
        return f"table/{self.table}"

    @property
    def cluster_name(self) -> str:
        """Name of the StoreCluster for kubectl."""
        return f"storecluster/{self.cluster}"

    def run(self, *arguments: str, within: float = 120.0) -> str:
        """Run kubectl in the namespace."""
        return self.kubectl(*arguments, f"--namespace={self.namespace}", within=within)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects in the namespace."""
        self.kubectl.apply(*objects, namespace=self.namespace)

    # What users do

    def open(self, *, stores: int = 3, partitions: int = 8, replicas: int = 3, **table: Any) -> None:
        """Apply StoreCluster and Table, and wait until the table is Ready and balanced.

        A field of the Table that is None is omitted.
        """
        columns = [{"name": "id", "type": "int64", "nullable": False}, {"name": "customer", "type": "string"}]
        spec = {
            "storeCluster": self.cluster,
            "partitions": partitions,
            "replicas": replicas,
            "schema": {"columns": columns, "primaryKey": ["id"]},
            "undeleteFor": "0s",
            **table,
        }
        spec = {name: value for name, value in spec.items() if value is not None}
        cluster = {"stores": stores, "storage": {"size": "1Gi"}}
        self.apply(
            {"apiVersion": _API, "kind": "StoreCluster", "metadata": {"name": self.cluster}, "spec": cluster},
            {"apiVersion": _API, "kind": "Table", "metadata": {"name": self.table}, "spec": spec},
        )
        self.settle()

    def close(self) -> None:
        """Delete the Table and the StoreCluster, and wait until everything is removed."""
        self.close_table()
        self.run("delete", "partitionassignments", "--all", "--timeout=30s")
        self.run("delete", self.cluster_name, "--ignore-not-found", "--timeout=90s")

    def close_table(self) -> None:
        """Delete the client and the table, and wait until they are gone."""
        self.run("delete", f"pod/{self.client}", "--ignore-not-found", "--grace-period=1")
        self.run("delete", self.table_name, "--ignore-not-found", "--timeout=90s")

    def scale(self, what: str, replicas: int) -> None:
        """Run `kubectl scale`."""
        self.run("scale", what, f"--replicas={replicas}")

    def limit_moves(self, partitions: int) -> None:
        """Set how many partitions of the table may change at the same time."""
        patch = msgspec.json.encode({"spec": {"movement": {"maxConcurrent": partitions}}}).decode()
        self.run("patch", self.table_name, "--type=merge", f"--patch={patch}")

    def pin(self, stores: dict[int, tuple[str, ...]]) -> None:
        """Pin partitions of the table to stores; the first store leads."""
        partitions = [
            {"partition": partition, "stores": chosen, "leader": chosen[0]} for partition, chosen in stores.items()
        ]
        spec = {"table": self.table, "from": 0, "partitions": partitions}
        self.apply(
            {"apiVersion": _API, "kind": "PartitionAssignment", "metadata": {"name": f"{self.table}-0"}, "spec": spec}
        )

    def wait_for_pins(self, stores: dict[int, tuple[str, ...]]) -> None:
        """Wait until the partitions are where they were pinned."""

        def there() -> bool:
            return stores.keys() == {found["partition"] for found in self.partitions()} and all(
                {peer["store"] for peer in found["stable"]} == set(stores[found["partition"]])
                and found.get("leader") == stores[found["partition"]][0]
                for found in self.partitions()
            )

        self.kubectl.wait("partitions are where they were pinned", there, within=90)

    def pause(self) -> None:
        """Pause the table, and wait until it is paused."""
        self.run("annotate", self.table_name, f"{_PAUSED}=true")
        self.kubectl.wait("the table is paused", lambda: "Paused" in self.reasons())

    def resume(self) -> None:
        """Resume the table."""
        self.run("annotate", self.table_name, f"{_PAUSED}-")

    # What is

    def status(self, what: str = "") -> dict[str, Any]:
        """Return the status of an object, by default of the table."""
        found: dict[str, Any] = self.kubectl.get(what or self.table_name, f"--namespace={self.namespace}").get(
            "status", {}
        )
        return found

    def settle(self, *, within: float = 180.0) -> None:
        """Wait until the statuses of the newest specs report that everything is ready."""
        self.kubectl.wait("table and stores are as wanted", self._settled, within=within)

    def _settled(self) -> bool:
        table = self.kubectl.get(self.table_name, f"--namespace={self.namespace}")
        cluster = self.kubectl.get(self.cluster_name, f"--namespace={self.namespace}")
        newest = all(
            each.get("status", {}).get("observedGeneration") == each["metadata"]["generation"]
            for each in (table, cluster)
        )
        arrived = table.get("status", {}).get("replicas") == table["spec"]["replicas"]
        well = all(holds(table, name) for name in ("Ready", "Balanced")) and holds(cluster, "Ready")
        return newest and arrived and well and not holds(table, "Degraded") and not holds(cluster, "Degraded")

    def seen(self, what: str) -> bool:
        """Whether a status is of the newest spec."""
        found = self.kubectl.get(what, f"--namespace={self.namespace}")
        return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])

    def reasons(self, what: str = "") -> set[str]:
        """Return the reasons of an object's conditions, by default of the table."""
        return {str(condition["reason"]) for condition in self.status(what).get("conditions", ())}

    def left(self) -> list[str]:
        """Return what is left of stores and tables, and of objects created for them."""
        kinds = "storeclusters,tables,pods,pvc,statefulsets,services,secrets,pdb,partitionassignments,rebalanceplans"
        return self.run("get", kinds, "--output=name").split()

    def moving(self) -> int:
        """Return how many partitions are not at their target."""
        return int(self.status().get("moving", 0))

    def partitions(self) -> list[dict[str, Any]]:
        """Return the status of every partition."""
        slices = self.kubectl.items("partitionassignments", f"--namespace={self.namespace}")
        mine = [each for each in slices if each["spec"]["table"] == self.table]
        return [partition for each in mine for partition in each.get("status", {}).get("partitions", ())]

    def holders(self) -> set[str]:
        """Return the stores that hold replicas."""
        return {peer["store"] for partition in self.partitions() for peer in partition["stable"]}

    def wait_for_holders(self, *stores: str) -> None:
        """Wait until exactly these stores hold replicas; statuses of partitions may follow that of the table."""
        self.kubectl.wait(f"{', '.join(stores)} hold everything", lambda: self.holders() == set(stores), within=30)

    def replicas(self, store: str) -> set[tuple[int, int]]:
        """Return the partitions of a store, with the ids of its replicas."""
        return {
            (partition["partition"], peer["replica"])
            for partition in self.partitions()
            for peer in partition["stable"]
            if peer["store"] == store
        }

    def volumes(self) -> dict[str, str]:
        """Return the volume of each store."""
        claims = self.kubectl.items("pvc", f"--namespace={self.namespace}")
        return {claim["metadata"]["name"].removeprefix("data-"): claim["spec"]["volumeName"] for claim in claims}

    def leaders(self) -> set[str]:
        """Return the stores that lead partitions."""
        return {str(partition.get("leader")) for partition in self.partitions()}

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the store pods, by name."""
        found = self.kubectl.pods(f"evenkeel.dev/store-cluster={self.cluster}", namespace=self.namespace)
        return {pod["metadata"]["name"]: pod for pod in found}

    def uids(self) -> dict[str, str]:
        """Return the uids of the store pods, by name."""
        return {name: str(pod["metadata"]["uid"]) for name, pod in self.pods().items()}

    def away(self, before: dict[str, str]) -> list[str]:
        """Return which of these pods are gone or being deleted."""
        pods = self.pods()
        there = {name: pod for name, pod in pods.items() if "deletionTimestamp" not in pod["metadata"]}
        return [name for name, uid in before.items() if name not in there or there[name]["metadata"]["uid"] != uid]

    def wait_for_others(self, before: dict[str, str], *, one_by_one: bool = False, within: float = 120.0) -> None:
        """Wait until every one of these pods is replaced and Ready; in a rollout at most one is not Ready."""

        def others() -> bool:
            pods = self.pods()
            away = [name for name in before if name not in pods or not holds(pods[name], "Ready")]
            assert not one_by_one or len(away) <= 1, f"{', '.join(away)} are away at the same time"
            return all(
                name in pods and pods[name]["metadata"]["uid"] != uid and holds(pods[name], "Ready")
                for name, uid in before.items()
            )

        self.kubectl.wait(f"others in place of {', '.join(before)}", others, within=within)

    def node_of(self, pod: str) -> str:
        """Return the node of a pod."""
        found = self.kubectl.get(f"pod/{pod}", f"--namespace={self.namespace}")
        return str(found["spec"]["nodeName"])

    # The client

    def start_client(self, *, node: str = "") -> None:
        """Start a pod that writes continuously."""
        self._apply_client(self.client, self._client_pod("write", node=node))
        self.run("wait", "--for=condition=Ready", f"pod/{self.client}", "--timeout=60s")
        self.wait_for_writes()

    def ask_client(self, verb: str) -> Any:
        """Run one command of the client in its own pod, and return its output."""
        name = f"{self.client}-{verb}"
        self._apply_client(name, {**self._client_pod(verb), "restartPolicy": "Never"})
        self.run("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=90s", within=100)
        return msgspec.json.decode(self.run("logs", name))

    def _apply_client(self, name: str, pod: dict[str, Any]) -> None:
        program = {"client.py": _PROGRAM.read_text()}
        self.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "client"}, "data": program},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod},
        )

    def progress(self) -> Found:
        """Return how many rows were acknowledged so far."""
        text = self.kubectl.execute(self.client, "cat", "/tmp/progress", namespace=self.namespace)
        return msgspec.json.decode(text, type=Found)

    def wait_for_writes(self, count: int = 200, *, within: float = 90.0) -> None:
        """Wait until this many more rows are acknowledged."""
        before = 0
        with contextlib.suppress(ClusterError):
            before = self.progress().acknowledged
        self.kubectl.wait(f"{count} more rows", lambda: self.progress().acknowledged >= before + count, within=within)

    def check(self) -> Found:
        """Check that every acknowledged row exists exactly once."""
        text = self.kubectl.execute(self.client, "python3", "/client/client.py", "check", namespace=self.namespace)
        found = msgspec.json.decode(text, type=Found)
        assert found.acknowledged > 0
        assert not found.missing, found
        assert found.rows == found.distinct, found
        return found

    def _client_pod(self, verb: str, *, node: str = "") -> dict[str, Any]:
        mounts = {"client": "/client", "secret": "/secret", "tmp": "/tmp"}
        return {
            "terminationGracePeriodSeconds": 1,
            **({"nodeName": node} if node else {}),
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "client",
                    "image": built("store"),
                    "imagePullPolicy": "Never",
                    "command": ["python3", "/client/client.py", verb],
                    "env": [{"name": "TABLE", "value": self.table}],
                    "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
                    "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/progress"]}, "periodSeconds": 1},
                }
            ],
            "volumes": [
                {"name": "client", "configMap": {"name": "client"}},
                {"name": "secret", "secret": {"secretName": f"{self.cluster}-client"}},
                {"name": "tmp", "emptyDir": {}},
            ],
        }

"""A StoreCluster, a Table and a client that never stops writing, in one namespace."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from e2e.cluster.errors import ClusterError
from e2e.cluster.images import built
from e2e.cluster.kubectl import Kubectl, holds

__all__ = ["Found", "Shop"]

_PROGRAM = Path(__file__).with_name("client.py")
_API = "evenkeel.dev/v1alpha1"
_PAUSED = "evenkeel.dev/paused"


class Found(msgspec.Struct, kw_only=True):
    """What the client says of the rows it wrote."""

    acknowledged: int
    failed: int = 0
    errors: list[str] = []
    longest: float = 0.0
    """Seconds that a write took at most."""
    rows: int = 0
    distinct: int = 0
    missing: list[int] = []


class Shop:
    """The objects of one namespace, and what they say. Several shops may share a namespace, or a StoreCluster."""

    def __init__(self, kubectl: Kubectl, namespace: str, *, cluster: str = "main", table: str = "orders") -> None:
        self.kubectl = kubectl
        self.namespace = namespace
        self.cluster = cluster
        self.table = table
        self.client = f"client-{table}"

    @property
    def table_name(self) -> str:
        """The table as kubectl names it."""
        return f"table/{self.table}"

    @property
    def cluster_name(self) -> str:
        """The StoreCluster as kubectl names it."""
        return f"storecluster/{self.cluster}"

    def run(self, *arguments: str, within: float = 120.0) -> str:
        """Run kubectl here."""
        return self.kubectl(*arguments, f"--namespace={self.namespace}", within=within)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Bring objects about, here."""
        self.kubectl.apply(*objects, namespace=self.namespace)

    # What users do

    def open(self, *, stores: int = 3, partitions: int = 8, replicas: int = 3, **table: Any) -> None:
        """Apply StoreCluster and Table, and wait until the table is Ready and where it should be.

        A field of the Table that is None is left out.
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
        """Delete table and stores, and wait until nothing of them is left."""
        self.close_table()
        self.run("delete", "partitionassignments", "--all", "--timeout=30s")
        self.run("delete", self.cluster_name, "--ignore-not-found", "--timeout=90s")

    def close_table(self) -> None:
        """Delete the client and the table, and wait until they are gone."""
        self.run("delete", f"pod/{self.client}", "--ignore-not-found", "--grace-period=1")
        self.run("delete", self.table_name, "--ignore-not-found", "--timeout=90s")

    def scale(self, what: str, replicas: int) -> None:
        """As `kubectl scale`."""
        self.run("scale", what, f"--replicas={replicas}")

    def limit_moves(self, partitions: int) -> None:
        """Let so many partitions of the table change at the same time."""
        patch = msgspec.json.encode({"spec": {"movement": {"maxConcurrent": partitions}}}).decode()
        self.run("patch", self.table_name, "--type=merge", f"--patch={patch}")

    def pin(self, stores: dict[int, tuple[str, ...]]) -> None:
        """Say where partitions of the table are to be; the first of the stores leads."""
        partitions = [
            {"partition": partition, "stores": chosen, "leader": chosen[0]} for partition, chosen in stores.items()
        ]
        spec = {"table": self.table, "from": 0, "partitions": partitions}
        self.apply(
            {"apiVersion": _API, "kind": "PartitionAssignment", "metadata": {"name": f"{self.table}-0"}, "spec": spec}
        )

    def wait_for_pins(self, stores: dict[int, tuple[str, ...]]) -> None:
        """Wait until they are there, and led so."""

        def there() -> bool:
            return stores.keys() == {found["partition"] for found in self.partitions()} and all(
                {peer["store"] for peer in found["stable"]} == set(stores[found["partition"]])
                and found.get("leader") == stores[found["partition"]][0]
                for found in self.partitions()
            )

        self.kubectl.wait("partitions are where they were pinned", there, within=90)

    def pause(self) -> None:
        """Let nothing of the table move, and wait until that is so."""
        self.run("annotate", self.table_name, f"{_PAUSED}=true")
        self.kubectl.wait("the table is paused", lambda: "Paused" in self.reasons())

    def resume(self) -> None:
        """Let it move again."""
        self.run("annotate", self.table_name, f"{_PAUSED}-")

    # What is

    def status(self, what: str = "") -> dict[str, Any]:
        """The status of an object; the table's unless another is named."""
        found: dict[str, Any] = self.kubectl.get(what or self.table_name, f"--namespace={self.namespace}").get(
            "status", {}
        )
        return found

    def settle(self, *, within: float = 180.0) -> None:
        """Wait until statuses that speak of the newest specs say that all is well."""
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
        """Whether a status speaks of the newest spec."""
        found = self.kubectl.get(what, f"--namespace={self.namespace}")
        return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])

    def reasons(self, what: str = "") -> set[str]:
        """The reasons of an object's conditions; the table's unless another is named."""
        return {str(condition["reason"]) for condition in self.status(what).get("conditions", ())}

    def left(self) -> list[str]:
        """What there is of stores and tables, or was made for them."""
        kinds = "storeclusters,tables,pods,pvc,statefulsets,services,secrets,pdb,partitionassignments,rebalanceplans"
        return self.run("get", kinds, "--output=name").split()

    def moving(self) -> int:
        """How many partitions are not where they should be."""
        return int(self.status().get("moving", 0))

    def partitions(self) -> list[dict[str, Any]]:
        """What is said of every partition."""
        slices = self.kubectl.items("partitionassignments", f"--namespace={self.namespace}")
        mine = [each for each in slices if each["spec"]["table"] == self.table]
        return [partition for each in mine for partition in each.get("status", {}).get("partitions", ())]

    def holders(self) -> set[str]:
        """The stores that hold something."""
        return {peer["store"] for partition in self.partitions() for peer in partition["stable"]}

    def wait_for_holders(self, *stores: str) -> None:
        """Wait until these hold something, and no others; statuses of partitions may come after the table's."""
        self.kubectl.wait(f"{', '.join(stores)} hold everything", lambda: self.holders() == set(stores), within=30)

    def replicas(self, store: str) -> set[tuple[int, int]]:
        """What a store holds: partitions, and the ids of its replicas."""
        return {
            (partition["partition"], peer["replica"])
            for partition in self.partitions()
            for peer in partition["stable"]
            if peer["store"] == store
        }

    def volumes(self) -> dict[str, str]:
        """Which volume each store has."""
        claims = self.kubectl.items("pvc", f"--namespace={self.namespace}")
        return {claim["metadata"]["name"].removeprefix("data-"): claim["spec"]["volumeName"] for claim in claims}

    def leaders(self) -> set[str]:
        """The stores that lead something."""
        return {str(partition.get("leader")) for partition in self.partitions()}

    def pods(self) -> dict[str, dict[str, Any]]:
        """The stores' pods by name."""
        found = self.kubectl.pods(f"evenkeel.dev/store-cluster={self.cluster}", namespace=self.namespace)
        return {pod["metadata"]["name"]: pod for pod in found}

    def uids(self) -> dict[str, str]:
        """Which pods they are."""
        return {name: str(pod["metadata"]["uid"]) for name, pod in self.pods().items()}

    def away(self, before: dict[str, str]) -> list[str]:
        """Which of these pods are gone, or on their way out."""
        pods = self.pods()
        there = {name: pod for name, pod in pods.items() if "deletionTimestamp" not in pod["metadata"]}
        return [name for name, uid in before.items() if name not in there or there[name]["metadata"]["uid"] != uid]

    def wait_for_others(self, before: dict[str, str], *, one_by_one: bool = False, within: float = 120.0) -> None:
        """Wait until every pod of these is another, and Ready; where it is one by one, never two of them are not."""

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
        """Where a pod is."""
        found = self.kubectl.get(f"pod/{pod}", f"--namespace={self.namespace}")
        return str(found["spec"]["nodeName"])

    # The client

    def start_client(self, *, node: str = "") -> None:
        """Let a pod write from now on."""
        self._apply_client(self.client, self._client_pod("write", node=node))
        self.run("wait", "--for=condition=Ready", f"pod/{self.client}", "--timeout=60s")
        self.wait_for_writes()

    def ask_client(self, verb: str) -> Any:
        """What a client prints that does one thing and ends, in a pod of its own."""
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

    def told(self) -> Found:
        """What the client has been promised so far."""
        text = self.kubectl.execute(self.client, "cat", "/tmp/told", namespace=self.namespace)
        return msgspec.json.decode(text, type=Found)

    def wait_for_writes(self, count: int = 200, *, within: float = 90.0) -> None:
        """Wait until so many more rows are acknowledged."""
        before = 0
        with contextlib.suppress(ClusterError):
            before = self.told().acknowledged
        self.kubectl.wait(f"{count} more rows", lambda: self.told().acknowledged >= before + count, within=within)

    def check(self) -> Found:
        """Everything that was acknowledged is there, as it was written, once."""
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
                    "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/told"]}, "periodSeconds": 1},
                }
            ],
            "volumes": [
                {"name": "client", "configMap": {"name": "client"}},
                {"name": "secret", "secret": {"secretName": f"{self.cluster}-client"}},
                {"name": "tmp", "emptyDir": {}},
            ],
        }

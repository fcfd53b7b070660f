"""Spark on Kubernetes: Kubeflow's operator from its own chart, and a SparkApplication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.images import built, export, program_image
from e2e.cluster.processes import run
from e2e.cluster.provider import Cluster
from e2e.release import Release, merged
from e2e.shop import Shop
from tests.repository.tree import ROOT, shown

__all__ = ["SparkApplication", "install_spark_operator", "load_spark_images"]

_MODULE = ROOT / "binaries" / "spark-operator"
_NAME = "spark-operator"
_PAGE = ROOT / "docs" / "spark.md"
_JOB = Path(__file__).with_name("spark_job.py")
_USER = 185
_ROLE = "network-policies"


def load_spark_images(cluster: Cluster) -> None:
    """Load the images of drivers, executors and the operator onto every node."""
    cluster.load_images(export(built("spark"), program=_NAME))


def install_spark_operator(cluster: Cluster, *, namespace: str) -> Release:
    """Install the operator for applications in one namespace."""
    registry, _, rest = program_image(_NAME).partition("/")
    repository, _, tag = rest.rpartition(":")
    values = {
        "image": {"registry": registry, "repository": repository, "tag": tag, "pullPolicy": "Never"},
        "spark": {"jobNamespaces": [namespace]},
    }
    release = Release(cluster.kubectl, name=_NAME, namespace=_NAME, chart=_chart())
    release.install(values)
    cluster.kubectl.apply(*_grant(namespace), namespace=namespace)
    return release


def _chart() -> Path:
    """Return the chart, which is in the Go module of the operator."""
    run("go", "mod", "download", cwd=_MODULE, within=600)
    folder = run("go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubeflow/spark-operator/v2", cwd=_MODULE)
    return Path(folder.strip()) / "charts" / "spark-operator-chart"


def _grant(namespace: str) -> list[dict[str, Any]]:
    """Allow NetworkPolicies, which Spark creates for each application since 4.2; chart 2.5.1 does not."""
    api = "rbac.authorization.k8s.io"
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update"]
    rule = {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": verbs}
    accounts = {f"{_NAME}-controller": _NAME, f"{_NAME}-spark": namespace}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": where} for name, where in accounts.items()]
    role = {"apiGroup": api, "kind": "Role", "name": _ROLE}
    return [
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": {"name": _ROLE}, "rules": [rule]},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": _ROLE},
            "roleRef": role,
            "subjects": subjects,
        },
    ]


class SparkApplication:
    """A Spark job with driver and executors in pods: `spark_job.py`."""

    def __init__(self, shop: Shop, name: str = "load") -> None:
        self.shop = shop
        self.name = name

    def start(self, *arguments: str, executors: int = 2) -> None:
        """Submit the application."""
        program = {_JOB.name: _JOB.read_text()}
        self.shop.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}, "data": program},
            self._application(arguments, executors),
        )

    def wait(self, *, within: float = 300.0) -> Any:
        """Wait for the job to succeed, and return what it printed."""
        kubectl = self.shop.kubectl
        state = kubectl.wait(f"the application {self.name} has ended", self._ended, within=within)
        said = self.shop.run("logs", f"{self.name}-driver")
        if state != "COMPLETED":
            raise ClusterError(f"the application {self.name} is {state}: {said[-4000:]}")
        # The output includes Spark's own log.
        [printed] = [line for line in said.splitlines() if line.startswith("{")]
        return msgspec.json.decode(printed)

    def executors(self) -> set[str]:
        """Return the nodes of the executors."""
        pods = self.shop.kubectl.pods(
            f"sparkoperator.k8s.io/app-name={self.name},spark-role=executor", namespace=self.shop.namespace
        )
        return {pod["spec"].get("nodeName", "") for pod in pods} - {""}

    def close(self) -> None:
        """Delete the application with its pods."""
        self.shop.run("delete", f"sparkapplication/{self.name}", "--ignore-not-found", "--timeout=60s")

    def _ended(self) -> str:
        state = self.shop.status(f"sparkapplication/{self.name}").get("applicationState", {}).get("state", "")
        return str(state) if state in ("COMPLETED", "FAILED", "SUBMISSION_FAILED", "UNKNOWN") else ""

    def _application(self, arguments: tuple[str, ...], executors: int) -> dict[str, Any]:
        """Return the application of docs/spark.md, with small resources, that runs once."""
        [example] = shown(_PAGE, "yaml")
        pod = {
            "cores": 1,
            "coreRequest": "100m",
            "memory": "512m",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        ours = {
            "image": built("spark"),
            "imagePullPolicy": "Never",
            "mainApplicationFile": f"local:///job/{_JOB.name}",
            "arguments": list(arguments),
            "restartPolicy": {"type": "Never"},
            "driver": {**pod, "configMaps": [{"name": self.name, "path": "/job"}]},
            "executor": {**pod, "instances": executors},
        }
        return merged(yaml.safe_load(example), {"metadata": {"name": self.name}, "spec": ours})

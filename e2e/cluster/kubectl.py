"""kubectl with a given kubeconfig."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from e2e.cluster.binaries import find
from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.processes import run, wait_until

__all__ = ["WORKERS", "Kubectl", "holds"]

WORKERS = "--selector=!node-role.kubernetes.io/control-plane"

T = TypeVar("T")


class Kubectl:
    """Runs kubectl with a kubeconfig; None means the user's own, with its current context."""

    def __init__(self, kubeconfig: Path | None = None) -> None:
        self.kubeconfig = kubeconfig
        self._program = find("kubectl")

    def __call__(self, *arguments: str, stdin: str | None = None, within: float = 60.0) -> str:
        """Return the output; ClusterError with stderr if the command fails."""
        config = () if self.kubeconfig is None else ("--kubeconfig", self.kubeconfig)
        return run(self._program, *config, *arguments, stdin=stdin, within=within)

    def get(self, *arguments: str) -> Any:
        """Return one object, or a list."""
        return msgspec.json.decode(self("get", "--output=json", *arguments))

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the objects of a list."""
        found: list[dict[str, Any]] = self.get(*arguments)["items"]
        return found

    def apply(self, *objects: dict[str, Any], namespace: str | None = None) -> None:
        """Apply objects on the server, overriding fields of other managers."""
        where = () if namespace is None else ("--namespace", namespace)
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}).decode()
        self("apply", "--server-side", "--force-conflicts", "--filename=-", *where, stdin=body)

    def wait(self, what: str, condition: Callable[[], T], *, within: float = 60.0) -> T:
        """Wait for the first truthy answer, and return it; an unreachable API server counts as false."""

        def asked() -> T | None:
            try:
                return condition()
            except ClusterError as error:
                complaints[:] = [str(error)]
                return None

        complaints: list[str] = []
        answer = wait_until(what, asked, within=within, why=lambda: "".join(complaints))
        assert answer is not None
        return answer

    def nodes(self) -> dict[str, bool]:
        """Return, by node, whether it is Ready."""
        return {node["metadata"]["name"]: holds(node, "Ready") for node in self.items("nodes")}

    def workers(self) -> list[str]:
        """Return the worker nodes."""
        return [node["metadata"]["name"] for node in self.items("nodes", WORKERS)]

    def pods(self, selector: str, *, namespace: str) -> list[dict[str, Any]]:
        """Return the pods with these labels."""
        return self.items("pods", f"--selector={selector}", f"--namespace={namespace}")

    def execute(self, pod: str, *command: str, namespace: str, container: str | None = None) -> str:
        """Run a command in a container, and return its output."""
        where = () if container is None else (f"--container={container}",)
        return self("exec", f"--namespace={namespace}", pod, *where, "--", *command)

    def cordon(self, node: str) -> None:
        """Cordon a node."""
        self("cordon", node)

    def uncordon(self, node: str) -> None:
        """Uncordon a node."""
        self("uncordon", node)

    def drain(self, node: str, *, within: float = 120.0) -> None:
        """Drain a node, as PodDisruptionBudgets allow."""
        options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={within:g}s")
        self("drain", node, *options, within=within + 10)


def holds(subject: dict[str, Any], condition: str) -> bool:
    """Whether a condition of an object is True."""
    conditions: Iterable[dict[str, Any]] = subject.get("status", {}).get("conditions", ())
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)

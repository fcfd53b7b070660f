"""kubectl, as whoever a kubeconfig says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from e2e.cluster.binaries import find
from e2e.cluster.errors import ClusterError
from e2e.cluster.process import run, wait_until

__all__ = ["WORKERS", "Kubectl", "holds"]

WORKERS = "--selector=!node-role.kubernetes.io/control-plane"

T = TypeVar("T")


class Kubectl:
    """The command with a kubeconfig; None is the user's own, with its current context."""

    def __init__(self, kubeconfig: Path | None = None) -> None:
        self.kubeconfig = kubeconfig
        self._program = find("kubectl")

    def __call__(self, *arguments: str, stdin: str | None = None, within: float = 60.0) -> str:
        """What it prints; an error with what the API server said where it fails."""
        config = () if self.kubeconfig is None else ("--kubeconfig", self.kubeconfig)
        return run(self._program, *config, *arguments, stdin=stdin, within=within)

    def get(self, *arguments: str) -> Any:
        """One object, or a list of them."""
        return msgspec.json.decode(self("get", "--output=json", *arguments))

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects of a list."""
        found: list[dict[str, Any]] = self.get(*arguments)["items"]
        return found

    def apply(self, *objects: dict[str, Any], namespace: str | None = None) -> None:
        """Bring objects about, server-side, and overwrite whoever else wrote their fields."""
        where = () if namespace is None else ("--namespace", namespace)
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}).decode()
        self("apply", "--server-side", "--force-conflicts", "--filename=-", *where, stdin=body)

    def wait(self, what: str, condition: Callable[[], T], *, within: float = 60.0) -> T:
        """The first answer that is not false; an API server that is away meanwhile is nothing but a no."""

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
        """Whether each node is Ready."""
        return {node["metadata"]["name"]: holds(node, "Ready") for node in self.items("nodes")}

    def workers(self) -> list[str]:
        """The nodes that are there for pods."""
        return [node["metadata"]["name"] for node in self.items("nodes", WORKERS)]

    def pods(self, selector: str, *, namespace: str) -> list[dict[str, Any]]:
        """The pods that carry these labels."""
        return self.items("pods", f"--selector={selector}", f"--namespace={namespace}")

    def execute(self, pod: str, *command: str, namespace: str, container: str | None = None) -> str:
        """What a command inside a container prints."""
        where = () if container is None else (f"--container={container}",)
        return self("exec", f"--namespace={namespace}", pod, *where, "--", *command)

    def cordon(self, node: str) -> None:
        """Let no new pod go there."""
        self("cordon", node)

    def uncordon(self, node: str) -> None:
        """Let pods go there again."""
        self("uncordon", node)

    def drain(self, node: str, *, within: float = 120.0) -> None:
        """Cordon it, and evict its pods as their PodDisruptionBudgets allow."""
        options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={within:g}s")
        self("drain", node, *options, within=within + 10)


def holds(subject: dict[str, Any], condition: str) -> bool:
    """Whether an object has this condition, and it is True."""
    conditions: Iterable[dict[str, Any]] = subject.get("status", {}).get("conditions", ())
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)

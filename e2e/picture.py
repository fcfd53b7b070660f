"""The state of a cluster, printed with a failed test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.kubectl import Kubectl, holds

__all__ = ["picture"]

_OPERATOR = "evenkeel-operator"
_LINES = 40
_SECONDS = 20.0
_QUESTIONS = (
    ("get", "nodes,storeclusters,tables,pods,pvc", "--all-namespaces", "--output=wide"),
    (
        "get",
        "storeclusters,tables",
        "--all-namespaces",
        "--output=jsonpath={range .items[*]}{.kind}/{.metadata.name} {.status}{'\\n'}{end}",
    ),
    ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", "--field-selector=type=Warning"),
)


def picture(kubectl: Kubectl, *, namespaces: str = "evenkeel") -> str:
    """Return objects, conditions, warnings, and the logs of the operator and of pods that are not ready."""
    parts = [_ask(kubectl, *question) for question in _QUESTIONS]
    return "\n\n".join([*parts, *_logs(kubectl, namespaces)])


def _logs(kubectl: Kubectl, namespaces: str) -> Iterator[str]:
    try:
        pods = kubectl.items("pods", "--all-namespaces")
    except ClusterError as error:
        yield str(error)
        return
    for pod in pods:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if namespace.startswith(namespaces) and (_OPERATOR in pod["metadata"].get("labels", {}).values() or _ill(pod)):
            options = ("--all-containers", "--prefix", f"--tail={_LINES}", f"--namespace={namespace}")
            yield _ask(kubectl, "logs", name, *options)
            if _restarts(pod):
                yield _ask(kubectl, "logs", name, *options, "--previous")


def _ill(pod: dict[str, Any]) -> bool:
    return _restarts(pod) or not (holds(pod, "Ready") or pod["status"].get("phase") == "Succeeded")


def _restarts(pod: dict[str, Any]) -> bool:
    statuses = pod["status"].get("containerStatuses", []) + pod["status"].get("initContainerStatuses", [])
    return any(status.get("restartCount", 0) for status in statuses)


def _ask(kubectl: Kubectl, *words: str) -> str:
    try:
        lines = kubectl(*words, within=_SECONDS).splitlines()
    except ClusterError as error:
        return str(error)
    return "\n".join([f"$ kubectl {' '.join(words)}", *lines[-3 * _LINES :]])

"""Selects the pod that a rollout replaces next.

A StatefulSet would replace the last pod even while another one is unavailable, and partitions on both would lose their
quorum. So the operator replaces pods itself (`OnDelete`): one at a time, those that are not ready first, and none while
another is starting or has not caught up. It evicts them, so that the PodDisruptionBudget applies: a node may be being
drained at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from evenkeel.kube.object_kinds import Object
from evenkeel_operator.reconcilers.pod_conditions import ready_pod

__all__ = ["next_to_replace", "outdated"]

REVISION_LABEL: Final = "controller-revision-hash"
"""Label by which the StatefulSet controller names the template that a pod was created from."""


def outdated(live: Object | None, pods: Iterable[Object]) -> list[Object]:
    """Return the pods that were created from an older template of the StatefulSet."""
    status = live.get("status", {}) if live is not None else {}
    revision = status.get("updateRevision")
    if live is None or not revision or status.get("observedGeneration") != live["metadata"].get("generation"):
        return []
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get(REVISION_LABEL) != revision]


def next_to_replace(live: Object | None, pods: Collection[Object], *, idle: Collection[str]) -> Object | None:
    """Return the pod to replace now, if any; `idle` stores hold no replica, so the rollout does not wait for them."""
    old = [pod for pod in outdated(live, pods) if not _terminating(pod)]
    if live is None or not old or len(pods) < live["spec"]["replicas"]:
        return None
    others = [pod for pod in pods if pod not in old and pod["metadata"]["name"] not in idle]
    if not all(map(ready_pod, others)):
        return None
    return min(old, key=lambda pod: (ready_pod(pod), -_number(pod)))


def _terminating(pod: Object) -> bool:
    """Whether a pod is being deleted; on a lost node it stays so as long as the Node exists."""
    return "deletionTimestamp" in pod["metadata"]


def _number(pod: Object) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])

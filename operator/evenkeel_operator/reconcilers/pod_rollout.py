"""Which pod is replaced next, when pods are to be others than they are.

A StatefulSet would take the last one, whoever else is away at the moment, and partitions on both would lose their
quorum. So pods are replaced by us (`OnDelete`): one at a time, those first that do not work anyway, and none while
another is on its way, or has not caught up. They are evicted, so that their budget has its say too, as somebody may be
draining a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from evenkeel.kube.object_kinds import Object
from evenkeel_operator.reconcilers.pod_conditions import ready_pod

__all__ = ["next_to_replace", "outdated"]

REVISION_LABEL: Final = "controller-revision-hash"
"""By which a StatefulSet's controller says what a pod was made from."""


def outdated(live: Object | None, pods: Iterable[Object]) -> list[Object]:
    """The pods that were made from another template than the StatefulSet has now."""
    status = live.get("status", {}) if live is not None else {}
    revision = status.get("updateRevision")
    if live is None or not revision or status.get("observedGeneration") != live["metadata"].get("generation"):
        return []
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get(REVISION_LABEL) != revision]


def next_to_replace(live: Object | None, pods: Collection[Object], *, idle: Collection[str]) -> Object | None:
    """The pod that may go now, if one has to; `idle` stores hold nothing, and nobody waits for them."""
    old = [pod for pod in outdated(live, pods) if not _going(pod)]
    if live is None or not old or len(pods) < live["spec"]["replicas"]:
        return None
    others = [pod for pod in pods if pod not in old and pod["metadata"]["name"] not in idle]
    if not all(map(ready_pod, others)):
        return None
    return min(old, key=lambda pod: (ready_pod(pod), -_number(pod)))


def _going(pod: Object) -> bool:
    """Whether it has been told to end; on a node that is lost it stays like that for as long as the node is there."""
    return "deletionTimestamp" in pod["metadata"]


def _number(pod: Object) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])

"""What the operator alone can say in a status: of pods, of missing permissions, of specs that cannot be read.

The controller speaks of what the metastore knows. Both end up in the same conditions, and a condition keeps its time
for as long as what it says of the whole stays the same, whoever says it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from pydantic import ValidationError

from evenkeel.kube.object_kinds import Object
from evenkeel.model.conditions import (
    STALLING,
    Condition,
    Reason,
    condition,
    merge_conditions,
    readable_at,
    with_kstatus,
)
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus
from evenkeel.reconcile.partition_status import Problem
from evenkeel.versions import FIRST

__all__ = ["PodFacts", "pod_problem", "ready_pod", "with_pod_facts", "with_problems"]

_WAITING = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CrashLoopBackOff", "CreateContainerConfigError")


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator knows of a StoreCluster's pods."""

    selector: str = ""
    pods: int = 0
    ready: int = 0
    zones_from: Literal["Nodes", "Overrides", "None"] | None = None
    waiting: str = ""
    """What has to happen before all is well, though nothing is wrong."""
    outdated: int = 0
    """Pods that are to be replaced, because the StatefulSet wants others."""
    problems: tuple[Problem, ...] = ()
    paused: bool = False


def with_pod_facts(
    cluster: StoreCluster, status: StoreClusterStatus, facts: PodFacts, *, before: StoreClusterStatus | None, now: str
) -> StoreClusterStatus:
    """The controller's status with what is known of the pods laid over it; `before` is what is published now."""
    told = {entry.type: entry for entry in status.conditions}
    told |= {entry.type: entry for entry in list(_conditions(cluster, facts, told, now=now))}
    conditions = merge_conditions(before.conditions if before is not None else (), told.values())
    return status.model_copy(
        update={
            "stores": facts.pods,
            "ready_stores": facts.ready,
            "selector": facts.selector,
            "zones_from": facts.zones_from,
            "conditions": readable_at(status.version, with_kstatus(conditions, now=now)),
        }
    )


def _conditions(
    cluster: StoreCluster, facts: PodFacts, told: Mapping[str, Condition], *, now: str
) -> Iterable[Condition]:
    generation = cluster.metadata.generation
    ready = told.get("Ready")
    refused = next((problem for problem in facts.problems if problem.reason in STALLING), None)
    if refused is not None and (ready is None or ready.status == "True"):
        words = f"generation {generation} is not carried out: {refused.message}"
        yield condition("Ready", False, refused.reason, words, now=now, generation=generation)
    elif facts.ready < cluster.spec.stores and (ready is None or ready.status == "True"):
        words = f"{facts.ready} of {cluster.spec.stores} pods are ready"
        yield condition(
            "Ready", False, Reason.STORES_NOT_READY, _joined(words, facts.waiting), now=now, generation=generation
        )
    degraded = told.get("Degraded")
    if facts.problems:
        own = degraded.message if degraded is not None and degraded.status == "True" else ""
        words = _joined(*(problem.message for problem in facts.problems), own)
        yield condition("Degraded", True, facts.problems[0].reason, words, now=now, generation=generation)
    elif degraded is None:
        yield condition("Degraded", False, Reason.AS_EXPECTED, "", now=now, generation=generation)
    if facts.outdated and not facts.paused:
        words = f"{facts.outdated} of {facts.pods} pods are replaced, one by one"
        yield condition("Progressing", True, Reason.RECONCILING, words, now=now, generation=generation)
    if facts.paused:
        words = "paused: neither pods nor plans are changed"
        yield condition("Progressing", False, Reason.PAUSED, words, now=now, generation=generation)


def with_problems(
    status: Object, problems: Iterable[Problem], *, generation: int, now: str, version: int | None = None
) -> Object:
    """A status of whatever kind, as it is, with why this generation is not Ready; other conditions stay as they are.

    `version` is the cluster version of its StoreCluster; a StoreCluster's status has it already.
    """
    version = status.get("version", FIRST) if version is None else version
    found = list(problems)
    before = [entry for entry in map(_read, status.get("conditions", ())) if entry is not None]
    words = _joined(*(problem.message for problem in found))
    wrong = [
        condition("Degraded", True, found[0].reason, words, now=now, generation=generation),
        condition("Ready", False, found[0].reason, words, now=now, generation=generation),
    ]
    merged = [
        entry.model_dump(mode="json", by_alias=True, exclude_none=True)
        for entry in readable_at(version, with_kstatus(merge_conditions(before, wrong), now=now))
    ]
    return {**status, "observedGeneration": generation, "conditions": merged}


def _read(document: Any) -> Condition | None:
    try:
        return Condition.model_validate(document, by_alias=True)
    except ValidationError:
        return None


def _joined(*words: str) -> str:
    return "; ".join(dict.fromkeys(filter(None, words)))


def ready_pod(pod: Object) -> bool:
    """Whether a pod is Ready, and is not on its way out."""
    conditions = pod["status"].get("conditions", ())
    ready = any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def pod_problem(pod: Object) -> Problem | None:
    """Why a pod cannot run, if so."""
    name, status = pod["metadata"]["name"], pod["status"]
    for entry in status.get("conditions", ()):
        if entry["type"] == "PodScheduled" and entry["status"] == "False":
            words = entry.get("message", "")
            # The scheduler says "PersistentVolumeClaims", "persistentvolumeclaim" and "persistent volumes to bind".
            unbound = "persistentvolume" in words.replace(" ", "").lower()
            reason = Reason.VOLUME_UNBOUND if unbound else Reason.STORES_NOT_READY
            return Problem(reason, f"pod {name} waits for a node: {words}")
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _WAITING:
            words = f"container {container['name']} of pod {name}: {waiting['reason']}"
            return Problem(Reason.STORES_NOT_READY, _joined(words, waiting.get("message", "")))
    return None

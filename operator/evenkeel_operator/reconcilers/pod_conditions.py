"""Conditions that only the operator can report: pods, missing permissions, invalid specs.

The controller reports what the metastore knows, in the same conditions. A condition keeps its transition time while the
combined status stays the same.
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
from evenkeel.reconcile.readiness import Problem
from evenkeel.versions import FIRST

__all__ = ["PodFacts", "pod_problem", "ready_pod", "with_pod_facts", "with_problems"]

_WAITING = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CrashLoopBackOff", "CreateContainerConfigError")


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a StoreCluster's pods."""

    selector: str = ""
    pods: int = 0
    ready: int = 0
    zones_from: Literal["Nodes", "Overrides", "None"] | None = None
    waiting: str = ""
    """What is still expected to become ready, though nothing is wrong."""
    outdated: int = 0
    """Number of pods of an older template."""
    problems: tuple[Problem, ...] = ()
    paused: bool = False


def with_pod_facts(
    cluster: StoreCluster, status: StoreClusterStatus, facts: PodFacts, *, before: StoreClusterStatus | None, now: str
) -> StoreClusterStatus:
    """Combine the controller's status with the state of the pods; `before` is the published status."""
    reported = {entry.type: entry for entry in status.conditions}
    reported |= {entry.type: entry for entry in list(_conditions(cluster, facts, reported, now=now))}
    conditions = merge_conditions(before.conditions if before is not None else (), reported.values())
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
    cluster: StoreCluster, facts: PodFacts, reported: Mapping[str, Condition], *, now: str
) -> Iterable[Condition]:
    generation = cluster.metadata.generation
    ready = reported.get("Ready")
    refused = next((problem for problem in facts.problems if problem.reason in STALLING), None)
    if refused is not None and (ready is None or ready.status == "True"):
        message = f"generation {generation} is not applied: {refused.message}"
        yield condition("Ready", False, refused.reason, message, now=now, generation=generation)
    elif facts.ready < cluster.spec.stores and (ready is None or ready.status == "True"):
        message = f"{facts.ready} of {cluster.spec.stores} pods are ready"
        yield condition(
            "Ready", False, Reason.STORES_NOT_READY, _joined(message, facts.waiting), now=now, generation=generation
        )
    degraded = reported.get("Degraded")
    if facts.problems:
        own = degraded.message if degraded is not None and degraded.status == "True" else ""
        message = _joined(*(problem.message for problem in facts.problems), own)
        yield condition("Degraded", True, facts.problems[0].reason, message, now=now, generation=generation)
    elif degraded is None:
        yield condition("Degraded", False, Reason.AS_EXPECTED, "", now=now, generation=generation)
    if facts.outdated and not facts.paused:
        message = f"replacing {facts.outdated} of {facts.pods} pods, one at a time"
        yield condition("Progressing", True, Reason.RECONCILING, message, now=now, generation=generation)
    if facts.paused:
        message = "paused: pods and plans do not change until it is resumed"
        yield condition("Progressing", False, Reason.PAUSED, message, now=now, generation=generation)


def with_problems(
    status: Object, problems: Iterable[Problem], *, generation: int, now: str, version: int | None = None
) -> Object:
    """Add to a status of any kind why this generation is not Ready; other conditions stay.

    `version` is the cluster version of its StoreCluster; a StoreCluster's own status has it.
    """
    version = status.get("version", FIRST) if version is None else version
    found = list(problems)
    before = [entry for entry in map(_read, status.get("conditions", ())) if entry is not None]
    message = _joined(*(problem.message for problem in found))
    wrong = [
        condition("Degraded", True, found[0].reason, message, now=now, generation=generation),
        condition("Ready", False, found[0].reason, message, now=now, generation=generation),
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


def _joined(*parts: str) -> str:
    return "; ".join(dict.fromkeys(filter(None, parts)))


def ready_pod(pod: Object) -> bool:
    """Whether a pod is Ready and not being deleted."""
    conditions = pod["status"].get("conditions", ())
    ready = any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def pod_problem(pod: Object) -> Problem | None:
    """Return why a pod cannot run, if so."""
    name, status = pod["metadata"]["name"], pod["status"]
    for entry in status.get("conditions", ()):
        if entry["type"] == "PodScheduled" and entry["status"] == "False":
            message = entry.get("message", "")
            # The scheduler writes "PersistentVolumeClaims", "persistentvolumeclaim" and "persistent volumes to bind".
            unbound = "persistentvolume" in message.replace(" ", "").lower()
            reason = Reason.VOLUME_UNBOUND if unbound else Reason.STORES_NOT_READY
            return Problem(reason, f"pod {name} cannot be scheduled: {message}")
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _WAITING:
            message = f"container {container['name']} of pod {name}: {waiting['reason']}"
            return Problem(Reason.STORES_NOT_READY, _joined(message, waiting.get("message", "")))
    return None

"""Conditions for pods, missing permissions and invalid specs."""

from __future__ import annotations

from typing import Any

import pytest

from evenkeel.kube.object_kinds import Object
from evenkeel.model.conditions import FIRST_TYPES, Reason, condition
from evenkeel.model.storecluster import StoreClusterStatus
from evenkeel.reconcile.readiness import Problem
from evenkeel_operator.reconcilers.pod_conditions import PodFacts, pod_problem, ready_pod, with_pod_facts, with_problems
from tests.kube_operator.support import store_cluster

OLD, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def conditions_of(status: StoreClusterStatus) -> dict[str, tuple[str, str, str]]:
    return {entry.type: (entry.status, entry.reason, entry.last_transition_time) for entry in status.conditions}


def said(ready: bool = True, degraded: bool = False, at: str = OLD) -> StoreClusterStatus:
    return StoreClusterStatus(
        conditions=(
            condition("Ready", ready, Reason.AS_EXPECTED, now=at, generation=1),
            condition("Degraded", degraded, Reason.STORES_LOST, "lost: main-1", now=at, generation=1),
        )
    )


def test_pods_that_are_not_ready_are_reported() -> None:
    """A registered store may not be ready: Ready requires all pods."""
    facts = PodFacts(pods=3, ready=2, waiting="not ready: main-2")
    after = with_pod_facts(store_cluster(), said(), facts, before=said(), now=NOW)
    assert conditions_of(after)["Ready"] == ("False", "StoresNotReady", NOW)
    assert (after.stores, after.ready_stores) == (3, 2)


def test_transition_times_are_stable() -> None:
    """The controller and the operator disagree in every reconciliation; the published times stay."""
    facts = PodFacts(pods=3, ready=2)
    first = with_pod_facts(store_cluster(), said(), facts, before=said(), now=NOW)
    again = with_pod_facts(store_cluster(), said(at=NOW), facts, before=first, now="2026-01-03T00:00:00Z")
    assert conditions_of(again) == conditions_of(first)


def test_problems_of_both_are_reported() -> None:
    """Problems of pods come before problems of stores, and neither hides the other."""
    facts = PodFacts(pods=3, ready=3, problems=(Problem(Reason.VOLUME_UNBOUND, "no volume"),))
    after = with_pod_facts(store_cluster(), said(degraded=True), facts, before=None, now=NOW)
    [degraded] = [entry for entry in after.conditions if entry.type == "Degraded"]
    assert (degraded.status, degraded.reason) == ("True", "VolumeUnbound")
    assert degraded.message == "no volume; lost: main-1"


def test_a_problem_keeps_the_rest_of_a_status() -> None:
    """An invalid spec is not Ready in its generation; Available stays."""
    ready = {
        "type": "Ready", "status": "True", "reason": "AsExpected", "message": "", "lastTransitionTime": OLD,
        "observedGeneration": 1,
    }  # fmt: skip
    available = {**ready, "type": "Available"}
    status = {"moving": 0, "conditions": [ready, available]}
    after = with_problems(status, [Problem(Reason.SPEC_INVALID, "what")], generation=2, now=NOW, version=2)
    assert after["moving"] == 0
    assert after["observedGeneration"] == 2
    by_type = {entry["type"]: entry for entry in after["conditions"]}
    assert by_type["Available"] == available
    assert (by_type["Ready"]["status"], by_type["Ready"]["observedGeneration"]) == ("False", 2)
    assert (by_type["Stalled"]["status"], by_type["Reconciling"]["status"]) == ("True", "False")
    assert by_type["Degraded"]["reason"] == "SpecInvalid"
    fresh = with_problems({"version": 2}, [Problem(Reason.SPEC_INVALID, "what")], generation=1, now=NOW)
    assert {entry["type"] for entry in fresh["conditions"] if entry["status"] == "True"} == {"Degraded", "Stalled"}


def test_operators_of_the_first_release_can_read_conditions() -> None:
    """Below cluster version 2 a status has only the condition types of the first release."""
    problems = [Problem(Reason.SPEC_INVALID, "what")]
    for version in (None, 1):
        status = {} if version is None else {"version": version}
        found = with_problems(status, problems, generation=1, now=NOW)
        assert {entry["type"] for entry in found["conditions"]} == {"Degraded", "Ready"}
    facts = PodFacts(problems=tuple(problems))
    for version, types in ((1, FIRST_TYPES), (2, FIRST_TYPES | {"Reconciling", "Stalled"})):
        said_now = said(degraded=True).model_copy(update={"version": version})
        after = with_pod_facts(store_cluster(), said_now, facts, before=None, now=NOW)
        assert {entry.type for entry in after.conditions} <= types
        assert ("Stalled" in {entry.type for entry in after.conditions}) == (version == 2)


def pod(**status: Any) -> Object:
    return {"metadata": {"name": "main-0"}, "spec": {"nodeName": "n1"}, "status": status}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims", Reason.VOLUME_UNBOUND),
        ("0/3 nodes are available: 3 didn't find available persistent volumes to bind.", Reason.VOLUME_UNBOUND),
        ('persistentvolumeclaim "data-main-0" not found', Reason.VOLUME_UNBOUND),
        ("0/3 nodes are available: 3 Insufficient cpu.", Reason.STORES_NOT_READY),
    ],
)
def test_the_message_of_the_scheduler(words: str, reason: Reason) -> None:
    """An unschedulable pod is reported with the scheduler's message; a missing volume has its own reason."""
    found = pod_problem(pod(conditions=[{"type": "PodScheduled", "status": "False", "message": words}]))
    assert found is not None
    assert (found.reason, words in found.message) == (reason, True)


def test_problems_of_pods_are_named() -> None:
    """A missing image and a crashing program are problems; a starting container is not."""
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pulling = pod_problem(pod(initContainerStatuses=[{"name": "raft", "state": waiting}]))
    assert pulling is not None
    assert "no such image" in pulling.message
    starting = {"waiting": {"reason": "PodInitializing"}}
    assert pod_problem(pod(containerStatuses=[{"name": "store", "state": starting}])) is None


def test_a_terminating_pod_is_not_ready() -> None:
    """Its condition still says Ready."""
    ready = pod(conditions=[{"type": "Ready", "status": "True"}])
    assert ready_pod(ready)
    ready["metadata"]["deletionTimestamp"] = NOW
    assert not ready_pod(ready)

"""What the operator says: conditions, Events, zones, how many pods, how it is itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from evenkeel.kube.object_kinds import TABLE, Object
from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.model.conditions import FIRST_TYPES, Reason, condition
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import Peer, Stable, StoreLoad, StoreRecord, StoreState, encode
from evenkeel.reconcile.partition_status import Problem
from evenkeel_operator.kube.event_recorder import turned
from evenkeel_operator.process.operator_health import OperatorHealth
from evenkeel_operator.reconcilers.pod_conditions import PodFacts, pod_problem, ready_pod, with_pod_facts, with_problems
from evenkeel_operator.reconcilers.surplus_stores import SurplusStores, idle_stores
from evenkeel_operator.reconcilers.store_zones import found_zones, with_zones, zones_from
from tests.kube_operator.support import store_cluster

OLD, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def told(status: StoreClusterStatus) -> dict[str, tuple[str, str, str]]:
    return {entry.type: (entry.status, entry.reason, entry.last_transition_time) for entry in status.conditions}


def said(ready: bool = True, degraded: bool = False, at: str = OLD) -> StoreClusterStatus:
    return StoreClusterStatus(
        conditions=(
            condition("Ready", ready, Reason.AS_EXPECTED, now=at, generation=1),
            condition("Degraded", degraded, Reason.STORES_LOST, "lost: main-1", now=at, generation=1),
        )
    )


def test_pods_that_are_not_ready_are_told() -> None:
    """Registered is not ready: the controller's Ready holds only with all pods."""
    facts = PodFacts(pods=3, ready=2, waiting="not ready: main-2")
    after = with_pod_facts(store_cluster(), said(), facts, before=said(), now=NOW)
    assert told(after)["Ready"] == ("False", "StoresNotReady", NOW)
    assert (after.stores, after.ready_stores) == (3, 2)


def test_times_stay_while_nothing_turns() -> None:
    """The controller and the operator contradict each other in every look; what is published stays as it is."""
    facts = PodFacts(pods=3, ready=2)
    first = with_pod_facts(store_cluster(), said(), facts, before=said(), now=NOW)
    again = with_pod_facts(store_cluster(), said(at=NOW), facts, before=first, now="2026-01-03T00:00:00Z")
    assert told(again) == told(first)


def test_troubles_of_both_are_told() -> None:
    """What pods lack goes before what stores lack, and neither hides the other."""
    facts = PodFacts(pods=3, ready=3, problems=(Problem(Reason.VOLUME_UNBOUND, "no volume"),))
    after = with_pod_facts(store_cluster(), said(degraded=True), facts, before=None, now=NOW)
    [degraded] = [entry for entry in after.conditions if entry.type == "Degraded"]
    assert (degraded.status, degraded.reason) == ("True", "VolumeUnbound")
    assert degraded.message == "no volume; lost: main-1"


def test_trouble_leaves_the_rest_of_a_status() -> None:
    """A spec that cannot be read is not Ready in its generation, which says nothing against what is served."""
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
    """Below version 2 there are only the types that they know, whatever the operator adds."""
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
def test_what_the_scheduler_says(words: str, reason: Reason) -> None:
    """A pod without a node is told with the scheduler's words; that it lacks a volume is a reason of its own."""
    found = pod_problem(pod(conditions=[{"type": "PodScheduled", "status": "False", "message": words}]))
    assert found is not None
    assert (found.reason, words in found.message) == (reason, True)


def test_problems_of_pods_are_named() -> None:
    """An image that is not there, a program that crashes; not one that just starts."""
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pulling = pod_problem(pod(initContainerStatuses=[{"name": "raft", "state": waiting}]))
    assert pulling is not None
    assert "no such image" in pulling.message
    starting = {"waiting": {"reason": "PodInitializing"}}
    assert pod_problem(pod(containerStatuses=[{"name": "store", "state": starting}])) is None


def test_a_pod_on_its_way_out_is_not_ready() -> None:
    """Though its condition still says so."""
    ready = pod(conditions=[{"type": "Ready", "status": "True"}])
    assert ready_pod(ready)
    ready["metadata"]["deletionTimestamp"] = NOW
    assert not ready_pod(ready)


def with_conditions(*entries: tuple[str, str, str]) -> Object:
    conditions = [{"type": t, "status": s, "reason": r, "message": "words"} for t, s, r in entries]
    return {"kind": TABLE.name, "status": {"conditions": conditions}}


def test_conditions_that_turn_are_events() -> None:
    """Each once, as a warning where it is bad; what stays the same is none."""
    before = with_conditions(("Ready", "True", "AsExpected"), ("Degraded", "False", "AsExpected"))
    after = with_conditions(("Ready", "True", "AsExpected"), ("Degraded", "True", "NoQuorum"))
    [event] = turned(before, after)
    assert (event.warning, event.reason) == (True, "NoQuorum")
    assert list(turned(after, after)) == []
    [back] = turned(after, before)
    assert (back.warning, back.reason) == (False, "Degraded")


def test_the_first_status_tells_little() -> None:
    """That nothing is wrong is no news."""
    fresh = with_conditions(("Ready", "False", "Reconciling"), ("Degraded", "False", "AsExpected"))
    assert [event.reason for event in turned({}, fresh)] == ["Reconciling"]


def test_a_rebalance_is_told_once() -> None:
    """That it goes on and that the table is not balanced are one thing; where reasons differ they are two."""

    def subject(progressing: str, balanced: str, *reasons: str) -> Object:
        told = zip(("Progressing", "Balanced"), (progressing, balanced), reasons, strict=True)
        conditions = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in told]
        return {"metadata": {"uid": "u"}, "status": {"conditions": conditions}}

    calm = subject("False", "True", "AsExpected", "AsExpected")
    moving = subject("True", "False", "Rebalancing", "Rebalancing")
    odd = subject("False", "False", "Paused", "SpecInvalid")
    assert [event.message for event in turned(calm, moving)] == ["Balanced False: Balanced is False"]
    assert [event.message for event in turned(moving, calm)] == ["Balanced True: Balanced is True"]
    assert len(list(turned(calm, odd))) == 2


ZONED = {"n1": {"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}}}


def test_a_user_knows_zones_better() -> None:
    """What an override says goes before what the node says; weights and labels of overrides stay."""
    cluster = store_cluster(overrides=[{"name": "main-0", "zone": "mine"}, {"name": "main-1", "weight": 2.0}])
    seen = with_zones(cluster, {"main-0": "a", "main-1": "b", "main-2": "c"})
    overrides = {override.name: override for override in seen.spec.overrides}
    assert {name: override.zone for name, override in overrides.items()} == {
        "main-0": "mine", "main-1": "b", "main-2": "c",
    }  # fmt: skip
    assert overrides["main-1"].weight == 2.0
    assert "weight" not in overrides["main-2"].model_fields_set, "a store's own weight is not overruled"


def test_zones_are_those_of_nodes() -> None:
    """A pod without a node, or on one without the label, has none."""
    cluster = store_cluster()
    pods = [pod(), {"metadata": {"name": "main-1"}, "spec": {"nodeName": "n2"}, "status": {}}]
    zones = found_zones(cluster, pods, ZONED)
    assert zones == {"main-0": "a"}
    assert zones_from(cluster, zones) == "Nodes"
    assert zones_from(cluster, {}) == "None"
    assert zones_from(store_cluster(overrides=[{"name": "main-0", "zone": "z"}]), {}) == "Overrides"


KEYS = Keys(namespace="shop", store_cluster="main")


def state(number: int, *, draining: bool) -> KeyValue:
    record = StoreState(volume=f"v{number}", draining=draining, record=StoreRecord(volume=f"v{number}"))
    return KeyValue(KEYS.store_state(f"main-{number}"), encode(record), 1, 1, 1)


def stable(*numbers: int) -> KeyValue:
    peers = tuple(Peer(f"main-{number}", f"v{number}", 1) for number in numbers)
    return KeyValue(KEYS.partition("t.1", 0).stable, encode(Stable(peers)), 1, 1, 1)


def census(
    cluster: StoreCluster, highest: int, stores: Iterable[KeyValue], *named: KeyValue, loads: Iterable[KeyValue] = ()
) -> SurplusStores:
    return SurplusStores(
        cluster=cluster,
        highest=highest,
        keys=KEYS,
        stores={kv.key: kv for kv in stores},
        named=tuple(kv.value for kv in named),
        loads={kv.key: kv for kv in loads},
    )


@pytest.mark.parametrize(
    ("draining", "held", "expected"),
    [
        ({3, 4}, (0, 1, 2), 3),
        ({3, 4}, (0, 1, 4), 5),
        ({3, 4}, (0, 1, 3), 4),
        ({4}, (0, 1, 2), 4),
        (set(), (0, 1, 2), 5),
    ],
    ids=["both are empty", "the last is not", "the first is not", "one was not told yet", "none was told yet"],
)
def test_pods_go_when_they_hold_nothing(draining: set[int], held: tuple[int, ...], expected: int) -> None:
    """From the last one down, and none before it was told to be emptied: a plan might still name it."""
    known = [state(number, draining=number in draining) for number in range(5)]
    assert census(store_cluster(), 5, known, stable(*held)).to_run() == expected


def test_a_store_that_never_came_up_can_go() -> None:
    """Nobody knows it, so nothing is on it."""
    found = census(store_cluster(), 5, [])
    assert found.to_run() == 3
    assert found.emptied(3) == {}, "but that alone is no word that its volume may go: the metastore may be a new one"


def test_a_pod_stays_until_its_store_has_deleted_its_replicas() -> None:
    """No partition names it, but it still reports a replica, which it will delete when the leader has confirmed."""
    load = StoreLoad(replicas=1, leading=0, log_bytes=0, bytes_per_second=0)
    states = [state(number, draining=True) for number in (3, 4)]
    reported = KeyValue(KEYS.load("main-4"), encode(load), 1, 1, 1)
    found = census(store_cluster(), 5, states, loads=[reported])
    assert found.to_run() == 5
    gone = KeyValue(KEYS.load("main-4"), encode(msgspec.structs.replace(load, replicas=0)), 1, 1, 1)
    found = census(store_cluster(), 5, states, loads=[gone])
    assert (found.to_run(), found.emptied(3)) == (3, {3: "v3", 4: "v4"})


def test_stores_that_are_away_and_hold_nothing() -> None:
    """Whoever is named by a partition, now or soon, holds something; `main-1` is not `main-10`."""
    assert idle_stores(["main-0", "main-1", "main-3"], [stable(1, 2), stable(30)]) == ["main-0", "main-3"]
    assert idle_stores([], [stable(1)]) == []


def test_similar_names_are_not_taken_for_each_other() -> None:
    """`main-1` is not `main-10`."""
    cluster = store_cluster(stores=1)
    known = [state(1, draining=True)]
    other = KeyValue(KEYS.partition("t.1", 0).stable, encode(Stable((Peer("main-10", "v", 1),))), 1, 1, 1)
    assert census(cluster, 2, known, other).to_run() == 1


def test_vitals_judge() -> None:
    """Deaf watches and stuck queues are reasons to start anew; etcd and the API server are reasons to be unready."""
    now = [0.0]
    health = OperatorHealth(lambda: now[0])
    assert health.unready() != ""
    health.saw_request("GET", TABLE, 200)
    health.etcd, health.leader = "", "one"
    assert (health.unready(), health.unhealthy()) == ("", "")
    health.etcd = "no endpoint answers"
    assert "no endpoint" in health.unready()
    assert health.unhealthy() == "", "starting anew brings no etcd back"
    health.saw_request("GET", TABLE, 0)
    assert "API server" in health.unready()
    health.swept(missed=1)
    assert health.unhealthy() == "", "once may be bad luck"
    health.swept(missed=1)
    assert "no watch" in health.unhealthy()
    health.swept(missed=0)
    assert health.unhealthy() == ""
    health.leading, health.oldest = True, lambda: 301.0
    assert "waited" in health.unhealthy()

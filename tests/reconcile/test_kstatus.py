"""How kstatus (Flux), `kubectl wait` and Argo CD interpret the statuses of every kind.

Argo CD's script is run by the Lua that Argo CD has. kstatus is its documented rules: a newer generation than the one
observed is InProgress, then the first of Reconciling and Stalled that is True decides, then Ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest
import yaml
from lupa import lua51

from evenkeel.metastore.metastore_api import Delete, Txn
from evenkeel.model.conditions import Reason, with_kstatus
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.resource_base import UNOBSERVED, ResourceBase
from evenkeel.model.resource_loading import load_yaml
from evenkeel.protocol.records import StoreLoad, TableState
from evenkeel.reconcile.cluster_status import cluster_problem_status
from evenkeel.reconcile.desired_table import desired_table
from evenkeel.reconcile.metastore_adoption import MetastoreSeen
from evenkeel.reconcile.partition_status import partition_statuses, slice_status
from evenkeel.reconcile.plan_status import CopyCosts, failed_plan_status, orphan_plan_status, plan_object, plan_status
from evenkeel.reconcile.readiness import Problem
from evenkeel.reconcile.table_status import problem_status
from tests.reconcile.support import KEYS, PARTITIONS, TABLE, store_cluster
from tests.reconcile.test_cluster_status import FULL, keys, scaled_down, status_of
from tests.reconcile.test_table_status import FIRST, IMPOSSIBLE, Scene
from tests.repository.tree import ROOT

FOLDER: Final = ROOT / "examples" / "argocd"
KINDS: Final = ("StoreCluster", "Table", "PartitionAssignment", "RebalancePlan")
AWAY: Final = Problem(Reason.METASTORE_UNREACHABLE, "etcd does not answer")
UNREADABLE: Final = Problem(Reason.MALFORMED_RECORD, "key x holds nonsense")
MISSING: Final = Problem(Reason.STORES_NOT_READY, "1 of 3 stores are registered")


class Verdict(msgspec.Struct, frozen=True):
    """What the tools show for an object."""

    kstatus: str
    argo: str
    waited_for: bool
    """Whether `kubectl wait --for=condition=Ready` returns."""


WELL: Final = Verdict("Current", "Healthy", True)
MOVING: Final = Verdict("InProgress", "Progressing", True)
COMING: Final = Verdict("InProgress", "Progressing", False)
FAILED: Final = Verdict("Failed", "Degraded", False)


def judge(document: dict[str, Any]) -> Verdict:
    return Verdict(kstatus(document), argo(document)["status"], waited_for(document))


def kstatus(document: dict[str, Any]) -> str:
    status = document.get("status", {})
    if "observedGeneration" in status and status["observedGeneration"] != document["metadata"]["generation"]:
        return "InProgress"
    conditions = status.get("conditions", [])
    for entry in conditions:
        if entry["type"] in ("Reconciling", "Stalled") and entry["status"] == "True":
            return "InProgress" if entry["type"] == "Reconciling" else "Failed"
    ready = [entry["status"] for entry in conditions if entry["type"] == "Ready"]
    return "Current" if ready in ([], ["True"]) else "InProgress"


def waited_for(document: dict[str, Any]) -> bool:
    """`kubectl wait` ignores a condition of an older generation."""
    found = [entry for entry in document.get("status", {}).get("conditions", []) if entry["type"] == "Ready"]
    current = document["metadata"]["generation"]
    return any(entry["status"] == "True" and entry["observedGeneration"] >= current for entry in found)


def argo(document: dict[str, Any]) -> dict[str, str]:
    """Run the script as Argo CD does: the object is the global `obj`, and a table is returned."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(document, recursive=True)
    return dict(lua.execute((FOLDER / "health.lua").read_text()))


def written(resource: ResourceBase, status: Any) -> dict[str, Any]:
    """Return the object as the API server would store it."""
    whole = resource.model_copy(update={"status": status})
    document = whole.model_dump(mode="json", by_alias=True, exclude_none=True)
    document["metadata"].setdefault("generation", resource.metadata.generation)
    return document


# Tables


def creating(scene: Scene) -> dict[str, Any]:
    scene.put(KEYS.table(TABLE), desired_table(scene.table).record)
    return {}


def first_elections(scene: Scene) -> dict[str, Any]:
    scene.put(KEYS.table(TABLE), msgspec.structs.replace(desired_table(scene.table).record, state=TableState.READY))
    for partition in range(PARTITIONS):
        scene.metastore.txn(Txn(success=(Delete(KEYS.leader(TABLE, partition)),)))
    return {}


def impossible(scene: Scene) -> dict[str, Any]:
    scene.status()
    scene.change(replicas=9)
    return {"problem": IMPOSSIBLE}


def impossible_while_moving(scene: Scene) -> dict[str, Any]:
    rebalancing(scene)
    return {"problem": IMPOSSIBLE}


def rebalancing(scene: Scene) -> dict[str, Any]:
    scene.status()
    scene.change(replicas=5)
    scene.carry(max_concurrent=20)
    return {}


def paused(scene: Scene) -> dict[str, Any]:
    scene.change(paused=True)
    return {"paused": "spec.paused is true"}


def paused_with_another_spec(scene: Scene) -> dict[str, Any]:
    scene.change(paused=True, replicas=5)
    return {"paused": "spec.paused is true"}


def election(scene: Scene) -> dict[str, Any]:
    scene.status()
    scene.metastore.txn(Txn(success=(Delete(KEYS.leader(TABLE, 3)),)))
    return {}


def no_quorum(scene: Scene) -> dict[str, Any]:
    scene.status()
    scene.lose("s0", "s1", "s2", "s3")
    return {}


def data_lost(scene: Scene) -> dict[str, Any]:
    scene.status()
    for number in range(5):
        scene.come_back(f"s{number}", "other")
    return {}


def damaged(scene: Scene) -> dict[str, Any]:
    election(scene)
    load = StoreLoad(replicas=1, leading=0, log_bytes=0, bytes_per_second=0, damaged=(f"{TABLE}/3",))
    scene.loads = {f"s{number}": load for number in range(5)}
    return {}


def one_store_lost(scene: Scene) -> dict[str, Any]:
    """Choose a store that leads nothing, so that all partitions stay available."""
    for partition in range(PARTITIONS):
        scene.lead(partition, next(store for store in scene.holders(partition) if store != "s0"))
    scene.lose("s0")
    return {}


TABLES: Final[dict[str, tuple[Callable[[Scene], dict[str, Any]], Verdict]]] = {
    "at rest": (lambda _: {}, WELL),
    "creating": (creating, COMING),
    "first elections": (first_elections, COMING),
    "impossible": (impossible, FAILED),
    "impossible while moving": (impossible_while_moving, FAILED),
    "its stores are coming": (lambda _: {"problem": MISSING}, COMING),
    "rebalancing": (rebalancing, MOVING),
    "paused": (paused, Verdict("Current", "Suspended", True)),
    "paused with another spec": (paused_with_another_spec, Verdict("InProgress", "Suspended", False)),
    "an election": (election, COMING),
    "no quorum": (no_quorum, FAILED),
    "data lost": (data_lost, FAILED),
    "all replicas damaged": (damaged, FAILED),
    "a store lost": (one_store_lost, Verdict("Current", "Degraded", True)),
}


@pytest.mark.parametrize("case", TABLES, ids=lambda case: str(case).replace(" ", "-"))
def test_tables(case: str) -> None:
    """From creation to the loss of all replicas; a Table whose spec is refused is not Ready but stays available."""
    prepare, verdict = TABLES[case]
    scene = Scene()
    known = prepare(scene)
    document = written(scene.table, scene.status(**known))
    assert judge(document) == verdict, document["status"]["conditions"]
    available = next(entry for entry in document["status"]["conditions"] if entry["type"] == "Available")
    served = case not in (
        "creating",
        "first elections",
        "an election",
        "no quorum",
        "data lost",
        "all replicas damaged",
    )
    assert available["status"] == ("True" if served else "False")


def test_a_plan_that_waits_for_its_approval() -> None:
    """A Table that is served without its newest spec is InProgress, and Suspended in Argo CD."""
    scene = Scene(approval="Manual")
    scene.status()
    scene.change(replicas=5, approval="Manual")
    scene.carry()
    assert judge(written(scene.table, scene.status())) == Verdict("InProgress", "Suspended", True)
    plan = scene.snapshot().plan
    assert plan is not None
    found = plan_object(scene.table, plan)
    assert judge(written(found, planned(scene, found))) == Verdict("InProgress", "Suspended", False)


def test_what_the_operator_has_not_seen() -> None:
    """With a new generation or an unreachable metastore, a Table is neither Current nor Failed."""
    scene = Scene()
    scene.status()
    scene.change(replicas=4)
    assert judge(written(scene.table, scene.table.status)) == COMING
    assert judge(written(scene.table, problem_status(scene.table, AWAY, now=FIRST))) == COMING
    assert judge(written(scene.table, problem_status(scene.table, UNREADABLE, now=FIRST))) == FAILED
    fresh = {**written(scene.table, None), "status": dict(UNOBSERVED)}
    assert judge(fresh) == COMING
    bare = scene.table.model_dump(mode="json", by_alias=True, exclude={"status"})
    assert argo(bare) == {"status": "Progressing", "message": "the operator has not reported a status yet"}


# StoreClusters


def clustered(*there: str, lost: tuple[str, ...] = ()) -> dict[str, Any]:
    cluster = store_cluster(3)
    return written(cluster, status_of(cluster, keys(*there, lost=lost)))


def test_store_clusters() -> None:
    """All stores registered; some missing; one lost; an unreachable metastore."""
    assert judge(clustered("s-0", "s-1", "s-2")) == WELL
    assert judge(clustered("s-0")) == COMING
    assert judge(clustered("s-0", "s-1", lost=("s-2",))) == COMING
    cluster = store_cluster(3)
    assert judge(written(cluster, cluster_problem_status(cluster, AWAY, now=FIRST))) == COMING


def test_store_clusters_whose_spec_is_not_applied() -> None:
    """A store that can never drain and a missing metastore to adopt are Failed in this generation."""
    assert judge(written(store_cluster(2, generation=4), scaled_down(tables=frozenset(FULL), blocked=FULL))) == FAILED
    cluster = store_cluster(1, adoptMetastore="ff@1")
    assert judge(written(cluster, status_of(cluster, keys("s-0"), metastore=MetastoreSeen("aa", 17)))) == FAILED


# PartitionAssignments


def sliced(scene: Scene, *, mode: str, problem: Problem | None = None) -> dict[str, Any]:
    text = (
        "apiVersion: evenkeel.dev/v1alpha1\nkind: PartitionAssignment\nmetadata: {name: orders-0, generation: 1}\n"
        "spec: {table: orders, from: 0, partitions: [{partition: 0, stores: [s0, s1, s2]}]}\n"
    )
    [found] = load_yaml(text)
    assert isinstance(found, PartitionAssignment)
    scene.change(rebalancer={"mode": mode})
    partitions = partition_statuses(scene.snapshot(), {})
    return written(found, slice_status(scene.table, found, partitions, problem=problem, now=FIRST))


def test_partition_assignments() -> None:
    """Choices that are applied, ignored, impossible, and in progress."""
    assert judge(sliced(Scene(), mode="SemiAuto")) == WELL
    assert judge(sliced(Scene(), mode="FullAuto")) == FAILED
    assert judge(sliced(Scene(), mode="SemiAuto", problem=IMPOSSIBLE)) == FAILED
    moving = Scene()
    rebalancing(moving)
    assert judge(sliced(moving, mode="SemiAuto")) == COMING
    assert judge(sliced(Scene(led=False), mode="SemiAuto")) == COMING


# RebalancePlans


def planned(scene: Scene, found: RebalancePlan) -> Any:
    return plan_status(
        found, scene.snapshot(), table=scene.table, cluster=None, costs=CopyCosts({}, {}), filling={}, now=FIRST
    )


def test_rebalance_plans() -> None:
    """Running, done, superseded, refused, and without a table."""
    scene = Scene()
    first = scene.snapshot().plan
    assert first is not None
    old = plan_object(scene.table, first)
    assert judge(written(old, planned(scene, old))) == WELL
    rebalancing(scene)
    newest = scene.snapshot().plan
    assert newest is not None
    found = plan_object(scene.table, newest)
    assert judge(written(found, planned(scene, found))) == COMING
    wrong = found.model_copy(update={"spec": found.spec.model_copy(update={"approved_hash": "0" * 16})})
    assert judge(written(wrong, planned(scene, wrong))) == FAILED
    assert judge(written(old, planned(scene, old))) == WELL
    assert judge(written(found, failed_plan_status(found, IMPOSSIBLE, now=FIRST))) == FAILED
    assert judge(written(found, orphan_plan_status(found, now=FIRST))) == COMING


# What is shipped


def test_argo_cd_gets_the_same_script_for_every_kind() -> None:
    """The ConfigMap has the script that is tested here."""
    found = yaml.safe_load((FOLDER / "argocd-cm.yaml").read_text())
    script = (FOLDER / "health.lua").read_text()
    assert found["data"] == {f"resource.customizations.health.evenkeel.dev_{kind}": script for kind in KINDS}


def test_reconciling_and_stalled_are_never_both_true() -> None:
    """At most one of Reconciling and Stalled is True: kstatus uses the first."""
    for prepare, _ in TABLES.values():
        scene = Scene()
        status = scene.status(**prepare(scene))
        held = [entry.type for entry in status.conditions if entry.status == "True"]
        assert not {"Reconciling", "Stalled"} <= set(held)
        assert with_kstatus(status.conditions, now=FIRST) == status.conditions

"""The table of watched kinds: what follows from a change, and that it is complete."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from evenkeel.kube.object_kinds import (
    NODE,
    PARTITION_ASSIGNMENT,
    POD,
    REBALANCE_PLAN,
    RESOURCE_KINDS,
    STORE_CLUSTER,
    TABLE,
    Kind,
    Object,
)
from evenkeel.model.conditions import DERIVED_CONDITIONS, ConditionType
from evenkeel_operator.kinds import KINDS, OWNER_FIELDS, Enqueue, Notify, effects_of, watched_kinds
from evenkeel_operator.kube.object_cache import Cache
from evenkeel_operator.manifests.object_names import STORE_CLUSTER_LABEL
from tests.kube_operator.support import FakeKube

MAIN, ORDERS = ("shop", "main"), ("shop", "orders")


@pytest.fixture
def cache() -> Cache:
    """A StoreCluster with one Table."""
    kube, cache = FakeKube(), Cache(OWNER_FIELDS)
    cache.put(STORE_CLUSTER, kube.add(STORE_CLUSTER, "main", spec={}))
    cache.put(TABLE, kube.add(TABLE, "orders", spec={"storeCluster": "main"}))
    return cache


def changed(kind: Kind, name: str, **fields: Any) -> Object:
    return FakeKube().add(kind, name, **fields)


def test_every_resource_is_declared() -> None:
    """Each resource has its status model and conditions, and every condition type belongs to a kind."""
    declared = {watched.kind: watched for watched in KINDS}
    for model, kind in RESOURCE_KINDS.items():
        assert declared[kind].status in get_args(model.model_fields["status"].annotation)  # type: ignore[attr-defined]
    assert {one for watched in KINDS for one in watched.conditions} == set(get_args(ConditionType))
    assert all(watched.quiet <= watched.conditions - DERIVED_CONDITIONS for watched in KINDS)
    assert len(declared) == len(KINDS)


def test_nodes_are_optional() -> None:
    """Nodes are watched only with permission to read them."""
    assert {watched.kind for watched in watched_kinds(nodes=True)} - {w.kind for w in watched_kinds(nodes=False)} == {
        NODE
    }


def test_a_store_cluster_affects_its_tables(cache: Cache) -> None:
    """It is reconciled with its tables, and its controller is notified."""
    effects = list(effects_of(cache, STORE_CLUSTER, None, changed(STORE_CLUSTER, "main", spec={})))
    assert effects == [Enqueue(STORE_CLUSTER, MAIN), Notify(MAIN), Enqueue(TABLE, ORDERS)]


def test_a_deleted_table_affects_its_store_cluster(cache: Cache) -> None:
    """A StoreCluster that is being deleted waits for its tables."""
    table = changed(TABLE, "orders", spec={"storeCluster": "main"})
    assert list(effects_of(cache, TABLE, None, table)) == [Enqueue(TABLE, ORDERS), Notify(MAIN, "orders")]
    assert list(effects_of(cache, TABLE, table, None))[-1] == Enqueue(STORE_CLUSTER, MAIN)


def test_objects_of_a_table_notify_its_controller(cache: Cache) -> None:
    """If the table is missing, every controller of the namespace is notified."""
    for kind in (PARTITION_ASSIGNMENT, REBALANCE_PLAN):
        for table in ("orders", "missing"):
            subject = changed(kind, "one", spec={"table": table})
            assert list(effects_of(cache, kind, None, subject)) == [Notify(MAIN, table)]


def test_statuses_that_the_operator_wrote_have_no_effect(cache: Cache) -> None:
    """Otherwise reconciliation would never end; the status of a pod matters."""
    for kind, spec in ((TABLE, {"storeCluster": "main"}), (NODE, {})):
        before = changed(kind, "orders", spec=spec)
        assert list(effects_of(cache, kind, before, {**before, "status": {"moving": 1}})) == []
        assert list(effects_of(cache, kind, before, {**before, "spec": {"storeCluster": "main", "new": 1}})) != []
    pod = changed(POD, "main-0", spec={})
    pod["metadata"]["labels"] = {STORE_CLUSTER_LABEL: "main"}
    assert list(effects_of(cache, POD, pod, {**pod, "status": {}})) == [Enqueue(STORE_CLUSTER, MAIN)]

"""Zones of stores, from nodes and overrides."""

from __future__ import annotations

from evenkeel.kube.object_kinds import Object
from evenkeel_operator.reconcilers.store_zones import found_zones, with_zones, zones_from
from tests.kube_operator.support import store_cluster

ZONED = {"n1": {"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}}}


def pod(name: str, node: str) -> Object:
    return {"metadata": {"name": name}, "spec": {"nodeName": node}, "status": {}}


def test_overrides_take_precedence() -> None:
    """The zone of an override precedes that of the node; weights and labels of overrides stay."""
    cluster = store_cluster(overrides=[{"name": "main-0", "zone": "mine"}, {"name": "main-1", "weight": 2.0}])
    seen = with_zones(cluster, {"main-0": "a", "main-1": "b", "main-2": "c"})
    overrides = {override.name: override for override in seen.spec.overrides}
    assert {name: override.zone for name, override in overrides.items()} == {
        "main-0": "mine", "main-1": "b", "main-2": "c",
    }  # fmt: skip
    assert overrides["main-1"].weight == 2.0
    assert "weight" not in overrides["main-2"].model_fields_set, "a store's own weight is not overridden"


def test_zones_are_those_of_nodes() -> None:
    """A pod without a node, or on one without the label, has no zone."""
    cluster = store_cluster()
    pods = [pod("main-0", "n1"), pod("main-1", "n2")]
    zones = found_zones(cluster, pods, ZONED)
    assert zones == {"main-0": "a"}
    assert zones_from(cluster, zones) == "Nodes"
    assert zones_from(cluster, {}) == "None"
    assert zones_from(store_cluster(overrides=[{"name": "main-0", "zone": "z"}]), {}) == "Overrides"

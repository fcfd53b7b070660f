"""The CRDs are current and have the form that the API server accepts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenkeel.model.conditions import Condition
from evenkeel.model.crd import PRESENTATIONS, SCHEMA_ANNOTATION, crd, main, render, schema_hashes
from evenkeel.model.partitionassignment import PartitionStatus, PeerStatus
from evenkeel.model.rebalanceplan import RebalancePlanStatus
from evenkeel.model.resource_loading import KINDS
from evenkeel.model.storecluster import StoreClusterStatus

FOLDER = Path(__file__).parents[2] / "crds"


def schema(kind: str) -> dict[str, Any]:
    [version] = crd(kind)["spec"]["versions"]
    found = version["schema"]["openAPIV3Schema"]
    assert isinstance(found, dict)
    return found


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from nodes(node["additionalProperties"], f"{path}{{}}")


def test_no_drift() -> None:
    """The files in crds/ are what `make crds` writes, and there are no others."""
    assert {file.name for file in FOLDER.iterdir()} == {f"{face.plural}.yaml" for face in PRESENTATIONS.values()}
    for kind, face in PRESENTATIONS.items():
        assert (FOLDER / f"{face.plural}.yaml").read_text() == render(kind), "run `make crds`"


def test_every_kind_has_one() -> None:
    """Every kind has a CRD."""
    assert set(PRESENTATIONS) == set(KINDS)


def test_main_writes(tmp_path: Path) -> None:
    """The command writes all files into the given folder."""
    main([str(tmp_path / "out")])
    assert len(list((tmp_path / "out").glob("*.yaml"))) == len(KINDS)
    with pytest.raises(SystemExit, match="usage"):
        main([])


@pytest.mark.parametrize("kind", KINDS)
def test_structural(kind: str) -> None:
    """Every node has one type or a reason for none, and nothing that the API server refuses."""
    for path, node in nodes(schema(kind)):
        untyped = "x-kubernetes-int-or-string" in node or "x-kubernetes-preserve-unknown-fields" in node
        assert ("type" in node) or untyped, path
        assert not {"$ref", "$defs", "title", "const", "oneOf", "uniqueItems", "exclusiveMinimum"} & set(node), path
        assert ("anyOf" in node) == ("x-kubernetes-int-or-string" in node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert node.get("default", 0) is not None, path
        assert not [key for key in node if key.startswith("x-evenkeel")], path


@pytest.mark.parametrize("kind", KINDS)
def test_lists_have_a_merge_strategy(kind: str) -> None:
    """Every list has a list type, and the keys of a map list are required fields."""
    for path, node in nodes(schema(kind)):
        if node.get("type") == "array":
            keys = node.get("x-kubernetes-list-map-keys", [])
            assert node["x-kubernetes-list-type"] in ("atomic", "set", "map"), path
            assert bool(keys) == (node["x-kubernetes-list-type"] == "map"), path
            assert set(keys) <= set(node["items"].get("required", ())), path


@pytest.mark.parametrize("kind", KINDS)
def test_bounded_specs(kind: str) -> None:
    """Lists, maps and texts of a spec are bounded, which CEL's cost estimate and etcd both need."""
    for path, node in nodes(schema(kind)["properties"]["spec"]):
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("type") == "integer":
            assert {"minimum", "maximum", "format"} <= set(node), path


@pytest.mark.parametrize("kind", KINDS)
def test_status(kind: str) -> None:
    """Status is a subresource with observedGeneration, 0 until an operator writes it, and conditions merged by type."""
    [version] = crd(kind)["spec"]["versions"]
    assert version["subresources"]["status"] == {}
    status = schema(kind)["properties"]["status"]
    assert status["default"] == {"observedGeneration": 0}
    conditions = status["properties"]["conditions"]
    assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])
    assert not [path for path, node in nodes(status) if "default" in node and node is not status]


@pytest.mark.parametrize(("kind", "path"), [("Table", ".spec.replicas"), ("StoreCluster", ".spec.stores")])
def test_scale(kind: str, path: str) -> None:
    """`kubectl scale` sets replicas and stores, and reads the observed number."""
    [version] = crd(kind)["spec"]["versions"]
    assert version["subresources"]["scale"]["specReplicasPath"] == path
    known = {found for found, _ in nodes(schema(kind))}
    assert set(version["subresources"]["scale"].values()) <= known


@pytest.mark.parametrize("kind", KINDS)
def test_columns_exist(kind: str) -> None:
    """Every printer column shows a field that exists."""
    [version] = crd(kind)["spec"]["versions"]
    known = {found for found, _ in nodes(schema(kind))} | {".metadata.creationTimestamp"}
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"]
        assert path in known or path.startswith('.status.conditions[?(@.type=="'), path


def test_table_columns() -> None:
    """`kubectl get tables` shows the most important columns."""
    [version] = crd("Table")["spec"]["versions"]
    shown = [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")]
    assert shown == ["Ready", "Partitions", "Replicas", "Moving", "Leaderless", "Age"]


def test_readable_yaml() -> None:
    """The files hold no anchors and parse to the same data."""
    for kind in KINDS:
        text = render(kind)
        assert "&id" not in text
        assert yaml.safe_load(text) == crd(kind)


def test_rules_of_the_api_server() -> None:
    """CEL rules refuse what can never be valid."""
    rules = {
        rule["rule"]
        for kind in KINDS
        for _, node in nodes(schema(kind))
        for rule in node.get("x-kubernetes-validations", ())
    }
    for rule in (
        "self.partitions == oldSelf.partitions",
        "self.primaryKey == oldSelf.primaryKey",
        "!has(self.consensusSize) || (self.consensusSize % 2 == 1 && self.consensusSize <= self.replicas)",
    ):
        assert rule in rules


@pytest.mark.parametrize("kind", list(PRESENTATIONS))
def test_statuses_have_no_enums(kind: str) -> None:
    """A newer operator can write new values under older CRDs."""
    found = [path for path, node in nodes(schema(kind)["properties"]["status"]) if "enum" in node]
    assert found == []


def test_statuses_of_a_newer_operator_can_be_read() -> None:
    """An unknown stage, role, state or condition type is accepted."""
    when = "2026-01-01T00:00:00Z"
    assert Condition(type="Blessed", status="Maybe", reason="New", last_transition_time=when).type == "Blessed"
    assert PartitionStatus.model_validate({"partition": 0, "stage": "Joint"}).stage == "Joint"
    assert PeerStatus.model_validate({"store": "a", "role": "Witness"}).role == "Witness"
    assert RebalancePlanStatus.model_validate({"state": "Rehearsed"}).state == "Rehearsed"
    assert StoreClusterStatus.model_validate({"zonesFrom": "Racks"}).zones_from == "Racks"


def test_the_hash_follows_the_content() -> None:
    """Different definitions have different hashes, by which an operator recognizes those of its release."""
    hashes = schema_hashes()
    assert set(hashes) == {f"{face.plural}.evenkeel.dev" for face in PRESENTATIONS.values()}
    assert len(set(hashes.values())) == len(PRESENTATIONS)
    assert crd("Table")["metadata"]["annotations"] == {SCHEMA_ANNOTATION: hashes["tables.evenkeel.dev"]}

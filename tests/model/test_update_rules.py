"""The changes that an existing resource allows."""

from __future__ import annotations

from typing import Any

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.model.resource_loading import Resource, parse
from evenkeel.model.update_rules import validate_update

ID = {"name": "id", "type": "int64", "nullable": False}
NOTE = {"name": "note", "type": "string"}
SPECS: dict[str, dict[str, Any]] = {
    "Table": {
        "storeCluster": "main",
        "partitions": 4,
        "schema": {"columns": [ID, NOTE], "primaryKey": ["id"]},
    },
    "StoreCluster": {"stores": 3, "storage": {"size": "10Gi"}},
    "PartitionAssignment": {"table": "t", "from": 0},
    "RebalancePlan": {"table": "t", "number": 1},
}


def resource(kind: str, **spec: Any) -> Resource:
    body = {**SPECS[kind], **spec}
    metadata = {"name": "t-0"}
    return parse({"apiVersion": "evenkeel.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": body})


def refused(old: Resource, new: Resource) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        validate_update(old, new)
    return [f"{problem.path}: {problem.text}" for problem in caught.value.problems]


def schema(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"columns": list(columns), "primaryKey": ["id"], **more}


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 5, "consensusSize": 3},
        {"rebalancer": {"mode": "UserDefined", "class": "a:B"}},
        {"approval": "Manual", "paused": True, "changes": {}},
        {"schema": schema(ID, NOTE, {"name": "more", "type": "date"})},
        {"schema": schema(ID, NOTE, {"name": "more", "type": "bool", "nullable": False, "default": False})},
        {"schema": schema(ID, {**NOTE, "comment": "for people"})},
        {"schema": schema(ID, NOTE, partitionBy=["id"])},
    ],
)
def test_table_changes(spec: dict[str, Any]) -> None:
    """Replicas, rebalancer, throttles and new columns may change."""
    validate_update(resource("Table"), resource("Table", **spec))


@pytest.mark.parametrize(
    ("spec", "problems"),
    [
        ({"partitions": 8}, ["spec.partitions: got 8; allowed: 4, because it cannot change after creation"]),
        (
            {"storeCluster": "other"},
            ['spec.storeCluster: got "other"; allowed: "main", because it cannot change after creation'],
        ),
        (
            {"schema": schema(ID)},
            ["spec.schema.columns[1]: column note must stay at position 1: columns can only be added at the end"],
        ),
        (
            {"schema": schema(NOTE, ID)},
            ["spec.schema.columns[0]: column id must stay at position 0: columns can only be added at the end"],
        ),
        (
            {"schema": schema(ID, {**NOTE, "type": "bytes", "nullable": False})},
            [
                'spec.schema.columns[1].type: got "bytes"; allowed: "string", because it cannot change after creation',
                "spec.schema.columns[1].nullable: got false; allowed: true, because it cannot change after creation",
            ],
        ),
        (
            {"schema": schema(ID, NOTE, {"name": "more", "type": "date", "nullable": False})},
            [
                "spec.schema.columns[2]: column more needs a default or `nullable: true`: existing rows have no value"
                " for it"
            ],
        ),
        (
            {"schema": {"columns": [ID, NOTE], "partitionBy": ["id"]}},
            ['spec.schema.primaryKey: got []; allowed: ["id"], because it cannot change after creation'],
        ),
    ],
)
def test_table_stays(spec: dict[str, Any], problems: list[str]) -> None:
    """Fields that existing data depends on cannot change, and every such change is reported."""
    assert refused(resource("Table"), resource("Table", **spec)) == problems


def test_volumes_only_grow() -> None:
    """A volume's size is compared by value, not by text."""
    old = resource("StoreCluster")
    validate_update(old, resource("StoreCluster", storage={"size": "10240Mi"}, stores=9))
    assert refused(old, resource("StoreCluster", storage={"size": "9Gi"})) == [
        'spec.storage.size: got "9Gi"; allowed: 10Gi or more, because volumes cannot shrink'
    ]
    assert refused(old, resource("StoreCluster", storage={"size": "10Gi", "className": "fast"})) == [
        'spec.storage.className: got "fast"; allowed: null, because it cannot change after creation'
    ]


def test_another_metastore() -> None:
    """Endpoints change only together with adoptMetastore."""
    here, there = ({"endpoints": [f"https://{name}:2379"]} for name in ("here", "there"))
    old = resource("StoreCluster", metastore=here, adoptMetastore="1")
    validate_update(old, resource("StoreCluster", metastore=there, adoptMetastore="2"))
    for adopted in ({}, {"adoptMetastore": "1"}):
        [problem] = refused(old, resource("StoreCluster", metastore=there, **adopted))
        assert problem.startswith("spec.metastore.endpoints: got")
        assert "unless `adoptMetastore` is changed to the etcd cluster" in problem
    [problem] = refused(resource("StoreCluster"), resource("StoreCluster", metastore=here, adoptMetastore="2"))
    assert problem.endswith("allowed: null, because it cannot change after creation")


def test_approval_is_final() -> None:
    """A plan can be approved once; its identity never changes."""
    open_plan = resource("RebalancePlan")
    approved = resource("RebalancePlan", approvedHash="a" * 32)
    validate_update(open_plan, approved)
    [problem] = refused(approved, open_plan)
    assert problem.endswith("an approval cannot be changed or revoked")
    assert refused(open_plan, resource("RebalancePlan", number=2)) == [
        "spec.number: got 2; allowed: 1, because it cannot change after creation"
    ]


def test_another_object() -> None:
    """An update never turns one object into another."""
    [problem] = refused(resource("Table"), resource("StoreCluster"))
    assert problem.startswith("metadata.name: got")

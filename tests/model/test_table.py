"""Table: rules that span fields, defaults, and the view planner and rebalancers get."""

from __future__ import annotations

from typing import Any

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.model.resource_loading import parse
from evenkeel.model.table import BUNDLED_CONFIG, Table
from evenkeel.rebalancers.rebalancer_runner import BUNDLED

ID = {"name": "id", "type": "int64", "nullable": False}


def table(**spec: Any) -> Table:
    body = {
        "storeCluster": "main",
        "partitions": 4,
        "schema": {"columns": [ID, {"name": "note", "type": "string"}], "primaryKey": ["id"]},
        **spec,
    }
    document = {"apiVersion": "evenkeel.dev/v1alpha1", "kind": "Table", "metadata": {"name": "t"}, "spec": body}
    parsed = parse(document)
    assert isinstance(parsed, Table)
    return parsed


def refused(**spec: Any) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        table(**spec)
    return [f"{problem.path}: {problem.text}" for problem in caught.value.problems]


@pytest.mark.parametrize(("replicas", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (99, 99)])
def test_default_consensus_size(replicas: int, voters: int) -> None:
    """Without consensusSize the largest odd number of replicas votes."""
    assert table(replicas=replicas).view().consensus_size == voters


@pytest.mark.parametrize("size", [2, 4, 5])
def test_consensus_size(size: int) -> None:
    """ConsensusSize is odd and at most replicas."""
    assert refused(replicas=3, consensusSize=size) == [
        f"spec.consensusSize: got {size}; allowed: an odd number from 1 to 3 (replicas)"
    ]


def test_view() -> None:
    """The view has everything that a rebalancer needs."""
    view = table(
        replicas=5,
        consensusSize=3,
        placement={"zoneSpread": False, "storeSelector": {"disk": "nvme"}, "maxPerStore": 7},
        rebalancer={"mode": "UserDefined", "class": "a.b:C", "config": {"x": [1]}},
    ).view()
    assert (view.name, view.partitions, view.replicas, view.consensus_size) == ("t", 4, 5, 3)
    assert (view.placement.zone_spread, view.placement.max_per_store) == (False, 7)
    assert view.placement.store_selector == {"disk": "nvme"}
    assert view.config == {"x": [1]}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (
            {"columns": [ID], "primaryKey": ["ident"]},
            'spec.schema.primaryKey[0]: got "ident"; allowed: a column of the table (id)',
        ),
        (
            {"columns": [{"name": "id", "type": "int64"}], "primaryKey": ["id"]},
            "spec.schema.columns[0].nullable: got true; allowed: `nullable: false`, because the column is part of"
            " primaryKey",
        ),
        (
            {"columns": [ID, {"name": "b", "type": "bool"}], "primaryKey": ["id"], "partitionBy": ["b"]},
            'spec.schema.partitionBy[0]: got "b"; allowed: a column of primaryKey (id)',
        ),
        (
            {"columns": [ID], "partitionBy": ["b"]},
            'spec.schema.partitionBy[0]: got "b"; allowed: a column of the table (id)',
        ),
        (
            {"columns": [{**ID, "type": "float64"}], "primaryKey": ["id"]},
            'spec.schema.primaryKey[0]: got "id"; allowed: a column that is not float64: floating point cannot be a'
            " key",
        ),
        (
            {"columns": [ID], "primaryKey": ["id", "id"]},
            'spec.schema.primaryKey[1]: got "id"; allowed: each column once',
        ),
        (
            {"columns": [ID, ID], "primaryKey": ["id"]},
            'spec.schema.columns[1].name: got "id"; allowed: each column once',
        ),
        (
            {"columns": [ID]},
            "spec.schema.partitionBy: got []; allowed: at least one column here or in primaryKey, which selects the"
            " partition of a row",
        ),
    ],
)
def test_keys(schema: dict[str, Any], problem: str) -> None:
    """Keys name columns that exist and can be keys."""
    assert refused(schema=schema) == [problem]


def test_append_only() -> None:
    """A table without a primary key has partitionBy or only one partition."""
    assert table(schema={"columns": [ID], "partitionBy": ["id"]}).spec.table_schema.partition_key == ("id",)
    assert table(partitions=1, schema={"columns": [ID]}).spec.table_schema.partition_key == ()


@pytest.mark.parametrize(
    ("rebalancer", "problem"),
    [
        ({"mode": "UserDefined"}, "class: got null; allowed: package.module:Name, because mode is UserDefined"),
        (
            {"mode": "UserDefined", "class": "mod"},
            'class: got "mod"; allowed: package.module:Name, because mode is UserDefined',
        ),
        (
            {"class": "a:B"},
            'class: got "a:B"; allowed: one of balanced, rendezvous, mod, pinned; your own class needs'
            " `mode: UserDefined`",
        ),
        (
            {"mode": "SemiAuto", "class": "mod"},
            'class: got "mod"; allowed: nothing, because under SemiAuto PartitionAssignments decide',
        ),
        (
            {"mode": "Customized", "class": "a:B"},
            'class: got "a:B"; allowed: nothing, because under Customized PartitionAssignments decide',
        ),
        (
            {"class": "fastest"},
            'class: got "fastest"; allowed: balanced, rendezvous, mod, pinned, or package.module:Name under'
            " UserDefined",
        ),
        ({"mode": "Auto"}, 'mode: got "Auto"; allowed: one of FullAuto, SemiAuto, Customized, UserDefined'),
        ({"config": {"x": 1}}, "config.x: got 1; allowed: nothing (the rebalancer balanced has no such key)"),
        (
            {"class": "rendezvous", "config": {"groups": "a"}},
            'config.groups: got "a"; allowed: only the keys group (the rebalancer rendezvous has no such key)',
        ),
    ],
)
def test_rebalancer(rebalancer: dict[str, Any], problem: str) -> None:
    """Mode and class agree."""
    assert refused(rebalancer=rebalancer) == [f"spec.rebalancer.{problem}"]


def test_bundled_names() -> None:
    """The names that a Table accepts are those of the bundled rebalancers."""
    assert set(BUNDLED_CONFIG) == set(BUNDLED)


def test_movement() -> None:
    """Durations and quantities keep their text and have a value."""
    movement = table(movement={"lostAfter": "1h30m", "bytesPerSecond": "20Mi"}).spec.movement
    assert movement.bytes_per_second is not None
    assert (movement.lost_after, movement.lost_after.seconds) == ("1h30m", 5400)
    assert (movement.bytes_per_second, movement.bytes_per_second.units) == ("20Mi", 20 * 1024**2)
    for nothing in ("0", "0.0", "0Mi"):
        assert refused(movement={"bytesPerSecond": nothing}) == [
            f'spec.movement.bytesPerSecond: got "{nothing}"; allowed: a quantity above zero, such as 20Mi or 500k'
        ]
    assert refused(movement={"lostAfter": 600}) == [
        "spec.movement.lostAfter: got 600; allowed: a duration with its unit (ms, s, m, h, d), such as 30s, 10m or"
        " 1h30m"
    ]


def test_frozen() -> None:
    """Resources are immutable."""
    with pytest.raises(ValueError, match="frozen"):
        table().spec.replicas = 5

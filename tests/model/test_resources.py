"""StoreCluster, PartitionAssignment and RebalancePlan: their rules and conversions."""

from __future__ import annotations

from typing import Any

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.model.partitionassignment import PartitionAssignment, choices, slices
from evenkeel.model.resource_loading import Resource, parse
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.views import Assignment, Choice, StoreView


def resource(kind: str, name: str, spec: dict[str, Any]) -> Resource:
    return parse({"apiVersion": "evenkeel.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})


def refused(kind: str, name: str, spec: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        resource(kind, name, spec)
    return [f"{problem.path}: {problem.text}" for problem in caught.value.problems]


def cluster(**spec: Any) -> StoreCluster:
    made = resource("StoreCluster", "main", {"stores": 3, "storage": {"size": "10Gi"}, **spec})
    assert isinstance(made, StoreCluster)
    return made


def test_store_cluster_quantities() -> None:
    """Sizes accept text and integers, but no unquoted fractions."""
    assert cluster(storage={"size": 1024}).spec.storage.size.units == 1024
    assert refused("StoreCluster", "main", {"stores": 3, "storage": {"size": 0.5}}) == [
        'spec.storage.size: got 0.5; allowed: a quantity such as 10Gi, 500m or 2; quote it: "0.5"'
    ]
    assert refused("StoreCluster", "main", {"stores": 3, "storage": {"size": "10 GB"}}) == [
        'spec.storage.size: got "10 GB"; allowed: a quantity such as 10Gi, 500m or 2'
    ]


def test_store_cluster_name() -> None:
    """Pods and labels are named after the cluster, so its name is short."""
    [problem] = refused("StoreCluster", "a" * 41, {"stores": 1, "storage": {"size": "1Gi"}})
    assert "at most 40 lower-case letters" in problem


@pytest.mark.parametrize("endpoint", ["etcd:2379", "https://etcd", "ftp://etcd:2379", "https://etcd:2379/path"])
def test_metastore_endpoints(endpoint: str) -> None:
    """Endpoints are URLs with a port."""
    [problem] = refused(
        "StoreCluster", "main", {"stores": 1, "storage": {"size": "1Gi"}, "metastore": {"endpoints": [endpoint]}}
    )
    assert problem.startswith(f'spec.metastore.endpoints[0]: got "{endpoint}"; allowed: an etcd endpoint such as')


def test_failure_handling() -> None:
    """Thresholds have defaults; a timeout below one second is refused."""
    handling = cluster().spec.failure_handling
    assert (handling.retries_before_degraded, handling.stalled_after.seconds) == (6, 30)
    [problem] = refused(
        "StoreCluster", "main", {"stores": 1, "storage": {"size": "1Gi"}, "failureHandling": {"stalledAfter": "100ms"}}
    )
    assert problem == 'spec.failureHandling.stalledAfter: got "100ms"; allowed: a duration of at least 1s'


def test_overrides() -> None:
    """Overrides and limits are applied to a discovered store; other fields stay."""
    main = cluster(
        maxReplicasPerStore=100,
        overrides=[
            {"name": "main-0", "zone": "a", "weight": 2, "labels": {"disk": "nvme"}},
            {"name": "main-1", "maxReplicas": 5},
        ],
    )
    stores = [StoreView(name=f"main-{i}", zone="z", labels={"cpu": "arm"}) for i in range(3)]
    views = [main.with_overrides(store, main.overrides()) for store in stores]
    assert [(view.zone, view.weight, view.capacity) for view in views] == [("a", 2, 100), ("z", 1, 5), ("z", 1, 100)]
    assert views[0].labels == {"cpu": "arm", "disk": "nvme"}


def test_overrides_name_each_store_once() -> None:
    """Two overrides of one store contradict each other."""
    assert refused(
        "StoreCluster",
        "main",
        {"stores": 1, "storage": {"size": "1Gi"}, "overrides": [{"name": "main-0"}, {"name": "main-0"}]},
    ) == ['spec.overrides[1]: got "main-0"; allowed: each name once']


def entry(partition: int, *stores: str, **more: Any) -> dict[str, Any]:
    return {"partition": partition, "stores": list(stores), **more}


def test_choices() -> None:
    """PartitionAssignments become choices by partition."""
    first = resource("PartitionAssignment", "t-0", {"table": "t", "from": 0, "partitions": [entry(3, "a", "b")]})
    second = resource(
        "PartitionAssignment", "t-1", {"table": "t", "from": 64, "partitions": [entry(64, "b", leader="b")]}
    )
    assert isinstance(first, PartitionAssignment)
    assert isinstance(second, PartitionAssignment)
    assert choices([first, second]) == {3: Choice(stores=("a", "b")), 64: Choice(stores=("b",), leader="b")}


def test_slices() -> None:
    """An assignment becomes one object per 64 partitions, and back."""
    rows = [["a", "b"] if p % 2 else ["b", "a"] for p in range(130)]
    made = list(slices("t", Assignment.of(rows, voters=1)))
    assert [(part.metadata.name, part.spec.from_, len(part.spec.partitions)) for part in made] == [
        ("t-0", 0, 64),
        ("t-1", 64, 64),
        ("t-2", 128, 2),
    ]
    assert {p: choice.stores for p, choice in choices(made).items()} == {p: tuple(row) for p, row in enumerate(rows)}


@pytest.mark.parametrize(
    ("name", "spec", "problem"),
    [
        ("t-0", {"from": 10}, "spec.from: got 10; allowed: an integer from 0 to 999999, a multiple of 64"),
        ("t-1", {"from": 0}, 'metadata.name: got "t-1"; allowed: t-0, which is <table>-<from / 64>'),
        (
            "t-1",
            {"from": 64, "partitions": [entry(3, "a")]},
            "spec.partitions[0].partition: got 3; allowed: 64 to 127, the slice at `from`",
        ),
        (
            "t-0",
            {"from": 0, "partitions": [entry(3, "a"), entry(3, "b")]},
            "spec.partitions[1].partition: got 3; allowed: each partition once",
        ),
        (
            "t-0",
            {"from": 0, "partitions": [entry(3, "a", "a")]},
            'spec.partitions[0].stores[1]: got "a"; allowed: each store once',
        ),
        (
            "t-0",
            {"from": 0, "partitions": [entry(3, "a", leader="b")]},
            'spec.partitions[0].leader: got "b"; allowed: one of the partition\'s stores (a)',
        ),
        (
            "t-0",
            {"from": 0, "partitions": [entry(3)]},
            "spec.partitions[0].stores: got []; allowed: a list of 1 to 99, each a DNS name: at most 63 lower-case"
            " letters, digits and dashes, such as `orders`",
        ),
    ],
)
def test_partition_assignment_rules(name: str, spec: dict[str, Any], problem: str) -> None:
    """A slice has only its own partitions, each once, on different stores, with one of them as leader."""
    assert refused("PartitionAssignment", name, {"table": "t", **spec}) == [problem]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({}, "spec.number: allowed: the plan's number, or `dryRun: true`"),
        ({"number": 1, "dryRun": True}, "spec.number: got 1; allowed: nothing, because a dry run has no number"),
        ({"number": 1, "whatIf": {"replicas": 5}}, "spec.whatIf: allowed: only together with `dryRun: true`"),
        (
            {"dryRun": True, "approvedHash": "a" * 32},
            f'spec.approvedHash: got "{"a" * 32}"; allowed: nothing, because a dry run is never executed',
        ),
        (
            {"number": 1, "approvedHash": "yes"},
            'spec.approvedHash: got "yes"; allowed: the plan\'s hash as `status.hash` shows it',
        ),
    ],
)
def test_rebalance_plan_rules(spec: dict[str, Any], problem: str) -> None:
    """A plan has a number and can be approved; a dry run has neither."""
    assert refused("RebalancePlan", "t-1", {"table": "t", **spec}) == [problem]

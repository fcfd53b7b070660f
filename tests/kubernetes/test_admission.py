"""Impossible specs: rejected by the API server if it can, reported by a condition otherwise.

While a condition reports a problem, the previous spec stays in force.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.cluster.binaries import lacking
from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.layers import leave_out
from e2e.release import Release
from evenkeel.kube.object_kinds import TABLE, Object
from evenkeel.protocol.keys import Keys
from tests.kubernetes.world import World, make_table, table

ID = {"name": "id", "type": "int64", "nullable": False}
AMOUNT = {"name": "amount", "type": "decimal(12,2)", "default": "0.00"}
NOTE = {"name": "note", "type": "string"}


def schema(*columns: Object) -> Object:
    return {"columns": [ID, *columns], "primaryKey": ["id"]}


@pytest.fixture
def policy(kubectl: Kubectl, namespace: str) -> Iterator[None]:
    """The chart's policy, limited to this namespace, and in effect."""
    if lacking("helm"):
        leave_out("not built yet: helm (make binaries ONLY=cluster)")
    release = Release(kubectl, namespace=namespace)
    shown = release.helm(
        *("template", release.name, "charts/evenkeel", "--kube-version=1.34.0"),
        "--show-only=templates/admission.yaml",
    )
    policy, binding = yaml.safe_load_all(shown)
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding["spec"]["matchResources"] = {"namespaceSelector": here}
    kubectl.apply(policy, binding)
    kubectl.apply(table(partitions=1, schema=schema(AMOUNT, NOTE)), namespace=namespace)
    # A policy takes effect a moment after its creation.
    kubectl.wait(
        "the policy is in force", lambda: bool(refused(kubectl, namespace, {**AMOUNT, "default": "1.00"}, NOTE))
    )
    try:
        yield
    finally:
        kubectl("delete", "validatingadmissionpolicybinding", binding["metadata"]["name"])
        kubectl("delete", "validatingadmissionpolicy", policy["metadata"]["name"])


def refused(kubectl: Kubectl, namespace: str, *columns: Object) -> str:
    """Return the API server's error for a table with these columns after its id; empty if it is accepted."""
    patch = json.dumps({"spec": {"schema": schema(*columns)}})
    arguments = ("patch", "table/orders", "--type=merge", f"--patch={patch}", f"--namespace={namespace}")
    try:
        kubectl(*arguments, "--dry-run=server")
    except ClusterError as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("policy")
def test_columns_that_the_policy_rejects(kubectl: Kubectl, namespace: str) -> None:
    """A changed, removed or added default, and a new column without a value for existing rows."""
    changed = "the default of amount cannot change after creation"
    for columns, words in (
        ([{**AMOUNT, "default": "1.00"}, NOTE], changed),
        ([{"name": "amount", "type": "decimal(12,2)"}, NOTE], changed),
        ([AMOUNT, {**NOTE, "default": "none"}], "note cannot get a default after creation"),
        ([AMOUNT, NOTE, {"name": "new", "type": "bool", "nullable": False}], "new needs a default or nullable: true"),
    ):
        assert words in refused(kubectl, namespace, *columns)


@pytest.mark.usefixtures("policy")
def test_columns_that_the_policy_accepts(kubectl: Kubectl, namespace: str) -> None:
    """Unchanged columns, and new columns with a default or nullable, up to the limit."""
    more = [{"name": "some", "type": "bool"}, {"name": "flag", "type": "bool", "nullable": False, "default": False}]
    many = [{"name": f"c{n}", "type": "int64", "default": n} for n in range(500)]
    for columns in ([AMOUNT, NOTE], [AMOUNT, {**NOTE, "comment": "for people"}, *more], [AMOUNT, NOTE, *many]):
        assert refused(kubectl, namespace, *columns) == ""


# What the API server cannot check


async def change(world: World, **spec: Any) -> None:
    patch = json.dumps({"spec": spec})
    await world.run("patch", "table/orders", "--type=merge", f"--patch={patch}")


async def problem(world: World, reason: str) -> str:
    """Wait for a reason of the Degraded condition, and return its message."""
    found = await world.condition(TABLE, "orders", "Degraded", reason=reason)
    [degraded] = [entry for entry in found["status"]["conditions"] if entry["type"] == "Degraded"]
    return str(degraded["message"])


async def refused_and_served(world: World, reason: str) -> Any:
    """Wait for a table whose newest generation is Stalled and not Ready, while it is still Available."""
    await world.condition(TABLE, "orders", "Ready", status="False", reason=reason)
    await world.condition(TABLE, "orders", "Stalled", reason=reason)
    found = await world.condition(TABLE, "orders", "Available")
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    return found


async def test_another_default_without_a_policy(world: World) -> None:
    """The condition names the column and the remedy; the table is served, and Ready once it is reverted."""
    world.start()
    await make_table(world, schema=schema(AMOUNT))
    await change(world, schema=schema({**AMOUNT, "default": "1.00"}))
    message = await problem(world, "SpecInvalid")
    assert 'spec.schema.columns[1].default: got "1.00"; allowed: "0.00"' in message
    await refused_and_served(world, "SpecInvalid")
    tables = Keys(namespace=world.namespace, store_cluster="main").table("")
    [record] = (await world.metastore.range(tables)).kvs
    assert b'"default":"0.00"' in record.value
    await change(world, schema=schema(AMOUNT))
    await world.condition(TABLE, "orders", "Degraded", status="False")


@pytest.mark.processes
async def test_more_replicas_than_stores(world: World) -> None:
    """The condition names the number of stores needed; existing replicas stay."""
    world.start()
    await make_table(world)
    await change(world, replicas=5)
    message = await problem(world, "NoFeasiblePlacement")
    assert "replicas 5 need 5 stores" in message
    found = await refused_and_served(world, "NoFeasiblePlacement")
    assert found["status"]["replicas"] == 3


@pytest.mark.processes
async def test_a_class_that_cannot_be_imported(world: World) -> None:
    """The condition names the class; replicas stay where they are."""
    world.start()
    await make_table(world)
    await change(world, rebalancer={"mode": "UserDefined", "class": "nowhere.to_be:Found"})
    message = await problem(world, "RebalancerFailed")
    assert "nowhere" in message
    found = await refused_and_served(world, "RebalancerFailed")
    assert found["status"]["replicas"] == 3

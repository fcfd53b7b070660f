"""The chart's RBAC rules are sufficient for the operator, and missing permissions are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from e2e.cluster.binaries import lacking
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.layers import leave_out
from e2e.release import CHART, Release
from evenkeel.kube.object_kinds import SERVICE, STATEFUL_SET, STORE_CLUSTER, TABLE
from tests.kubernetes.world import World, make_table, store_cluster

API = "rbac.authorization.k8s.io"
ACCOUNT = "operator"
Rules = list[dict[str, Any]]


def granted(kubectl: Kubectl, namespace: str) -> tuple[Rules, Rules]:
    """Return the chart's rules for a served namespace, and for the operator's own."""
    if lacking("helm"):
        leave_out("not built yet: helm (make binaries ONLY=cluster)")
    rendered = Release(kubectl, namespace=namespace).helm(
        "template", "evenkeel", CHART, "--kube-version=1.34.0", "--set=rbac.scope=namespace"
    )
    rules = {found["metadata"]["name"]: found["rules"] for found in yaml.safe_load_all(rendered) if "rules" in found}
    return rules[f"evenkeel-{namespace}"], rules["evenkeel-own"]


def grant(kubectl: Kubectl, namespace: str, *rules: Rules) -> None:
    """Grant rules to the operator's account in one namespace."""
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    role = {"apiGroup": API, "kind": "Role", "name": ACCOUNT}
    metadata = {"name": ACCOUNT}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{API}/v1", "kind": "Role", "metadata": metadata, "rules": [r for each in rules for r in each]},
        {
            "apiVersion": f"{API}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [subject],
        },
        namespace=namespace,
    )


def kubeconfig(kubectl: Kubectl, namespace: str, folder: Path) -> Path:
    """Write a kubeconfig for that account."""
    assert kubectl.kubeconfig is not None
    config = msgspec.yaml.decode(kubectl.kubeconfig.read_bytes())
    token = kubectl("create", "token", ACCOUNT, f"--namespace={namespace}").strip()
    for user in config["users"]:
        user["user"] = {"token": token}
    file = folder / "kubeconfig"
    file.write_bytes(msgspec.yaml.encode(config))
    return file


def renamed(rules: Rules) -> Rules:
    """Use the names of the Lease and the seed in tests."""
    text = msgspec.json.encode(rules).decode()
    return list(msgspec.json.decode(text.replace('"evenkeel-seed"', '"seed"').replace('"evenkeel"', '"operator"')))


@pytest.mark.processes
async def test_the_chart_grants_enough(kubectl: Kubectl, world: World, tmp_path: Path) -> None:
    """With only its own permissions the operator creates a table, replaces pods, and removes everything."""
    served, own = granted(kubectl, world.namespace)
    grant(kubectl, world.namespace, served, renamed(own))
    world.start(kubeconfig=kubeconfig(kubectl, world.namespace, tmp_path))
    await make_table(world, undeleteFor="0s")
    await world.run("scale", "table/orders", "--replicas=1")
    await world.condition(TABLE, "orders", "Balanced")
    made = world.pods.made
    await world.run("patch", "storecluster/main", "--type=merge", '--patch={"spec":{"healing":"Manual"}}')

    async def replaced() -> bool:
        return world.pods.made == made + 3

    await world.until("all pods are replaced", replaced, within=120)
    await world.run("delete", "table/orders", "storecluster/main", "--timeout=60s")
    assert await world.keys() == []


@pytest.mark.processes
@pytest.mark.parametrize("lacks", ["services", "pods"])
async def test_a_missing_permission_is_named(kubectl: Kubectl, world: World, tmp_path: Path, lacks: str) -> None:
    """Without permission to write or list, the status reports it; once granted, the operator continues."""
    served, own = granted(kubectl, world.namespace)
    poorer = [{**rule, "resources": [r for r in rule["resources"] if r != lacks]} for rule in served]
    poorer = [rule for rule in poorer if rule["resources"]]
    grant(kubectl, world.namespace, poorer, renamed(own))
    operator = world.start(kubeconfig=kubeconfig(kubectl, world.namespace, tmp_path))
    await world.apply(store_cluster())
    found = await world.condition(STORE_CLUSTER, "main", "Degraded", reason="Forbidden")
    assert lacks in str(found["status"]["conditions"])
    assert await world.get(SERVICE, "main") is None
    assert operator.health.unhealthy() == ""
    grant(kubectl, world.namespace, served, renamed(own))
    await world.condition(STORE_CLUSTER, "main", "Ready")
    await world.condition(STORE_CLUSTER, "main", "Degraded", status="False")
    assert await world.get(STATEFUL_SET, "main") is not None

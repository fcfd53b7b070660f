"""The generated CRDs on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.kubectl import Kubectl, holds
from evenkeel.errors import InvalidInputError
from evenkeel.model.resource_loading import parse
from evenkeel.model.update_rules import validate_update
from tests.kubernetes.rules import CASES, Case, Spec
from tests.repository.tree import ROOT

NAMES = {"PartitionAssignment": "orders-0"}
IDS = [case.id for case in CASES]


def body(case: Case, spec: Spec, *, name: str | None = None) -> dict[str, Any]:
    metadata = {"name": name or NAMES.get(case.kind, "orders")}
    return {"apiVersion": "evenkeel.dev/v1alpha1", "kind": case.kind, "metadata": metadata, "spec": spec}


def submit(kubectl: Kubectl, verb: str, subject: dict[str, Any], *options: str, namespace: str) -> str:
    text = msgspec.json.encode(subject).decode()
    return kubectl(verb, "--filename=-", f"--namespace={namespace}", *options, stdin=text)


def rules(node: Any) -> Iterator[str]:
    """Return the messages of all CEL rules in a schema."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict):
        for rule in node.get("x-kubernetes-validations", ()):
            yield rule["message"]
    for child in children:
        yield from rules(child)


def test_every_rule_has_a_case() -> None:
    """No rule of a CRD is left untested, and no case tests a rule that is gone."""
    expected = set()
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(file.read_text())
        [version] = crd["spec"]["versions"]
        expected |= {(crd["spec"]["names"]["kind"], message) for message in rules(version["schema"])}
    assert {(case.kind, case.message) for case in CASES} == expected


def test_crds_are_accepted(kubectl: Kubectl) -> None:
    """The API server accepts each CRD, and reports no problem with its schema."""
    crds = kubectl.items("customresourcedefinitions")
    assert len(crds) == len(list((ROOT / "crds").glob("*.yaml")))
    for crd in crds:
        assert holds(crd, "Established"), crd["metadata"]["name"]
        assert holds(crd, "NamesAccepted"), crd["metadata"]["name"]
        assert not holds(crd, "NonStructuralSchema"), crd["status"]["conditions"]


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda file: file.name)
def test_examples_apply(kubectl: Kubectl, namespace: str, file: Path) -> None:
    """The API server knows every field of every example, and drops none."""
    options = (f"--filename={file}", f"--namespace={namespace}")
    kubectl("apply", *options, "--validate=strict")
    assert kubectl("diff", *options) == ""


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_rule(kubectl: Kubectl, namespace: str, case: Case) -> None:
    """The rule accepts one object and rejects the other, with its message and no other."""
    verb = "create"
    if case.before is not None:
        submit(kubectl, "create", body(case, case.before), namespace=namespace)
        verb = "replace"
    submit(kubectl, verb, body(case, case.accepted), "--dry-run=server", namespace=namespace)
    refused = body(case, case.refused, name=case.refused_name)
    with pytest.raises(ClusterError) as caught:
        submit(kubectl, verb, refused, "--dry-run=server", namespace=namespace)
    expected = (case.message, *case.also)
    assert str(caught.value).count("Invalid value") == len(expected), caught.value
    assert all(f": {message}" in str(caught.value) for message in expected), caught.value


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_rule_of_the_models(case: Case) -> None:
    """The models, which `evenkeel validate` and local mode use, agree with the API server."""

    def check(spec: Spec, name: str | None = None) -> None:
        new = parse(body(case, spec, name=name))
        if case.before is not None:
            validate_update(parse(body(case, case.before)), new)

    check(case.accepted)
    with pytest.raises(InvalidInputError):
        check(case.refused, case.refused_name)


def test_a_new_object_is_not_current(kubectl: Kubectl, namespace: str) -> None:
    """Before its first reconciliation, kstatus sees that its generation was not observed."""
    case = next(case for case in CASES if case.kind == "Table")
    spec = {
        "storeCluster": "main",
        "partitions": 1,
        "replicas": 1,
        "schema": {"columns": [{"name": "id", "type": "int64"}]},
    }
    submit(kubectl, "create", body(case, spec, name="unseen"), namespace=namespace)
    [found] = [
        item for item in kubectl.items("tables", f"--namespace={namespace}") if item["metadata"]["name"] == "unseen"
    ]
    assert (found["status"], found["metadata"]["generation"]) == ({"observedGeneration": 0}, 1)
    assert parse(found).status is None


def test_unknown_fields_are_named(kubectl: Kubectl, namespace: str) -> None:
    """A misspelt field is rejected by name."""
    case = CASES[0]
    with pytest.raises(ClusterError, match=r'unknown field "spec\.replica"'):
        submit(kubectl, "create", body(case, {**case.accepted, "replica": 3}), namespace=namespace)


@pytest.mark.parametrize(("kind", "field"), [("Table", "replicas"), ("StoreCluster", "stores")])
def test_scale(kubectl: Kubectl, namespace: str, kind: str, field: str) -> None:
    """`kubectl scale` changes the right field."""
    case = next(case for case in CASES if case.kind == kind)
    submit(kubectl, "create", body(case, case.accepted), namespace=namespace)
    kubectl("scale", f"{kind}/orders", "--replicas=7", f"--namespace={namespace}")
    assert kubectl.get(f"{kind}/orders", f"--namespace={namespace}")["spec"][field] == 7

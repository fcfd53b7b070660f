"""The chart: what it renders, what it refuses, and that an API server takes it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from e2e.cluster.binaries import find, lacking
from e2e.cluster.layers import leave_out
from evenkeel_operator.process.options import parse_options
from tests.repository.tree import ROOT

CHART = ROOT / "charts" / "evenkeel"
NAMED = {
    "bundled": {},
    "dev": yaml.safe_load((CHART / "values-dev.yaml").read_text()),
    "plain": {"tls": {"enabled": False}, "admission": {"policies": False}},
    "one-namespace": {"rbac": {"scope": "namespace", "nodes": False}},
    "external": {
        "etcd": {
            "bundled": False,
            "external": {
                "endpoints": ["https://etcd.example:2379"],
                "secretName": "etcd",
                "secretKeys": ["ca.crt", "tls.crt", "tls.key", "username", "password"],
                "serverName": "etcd.example",
            },
        }
    },
    "extras": {
        "networkPolicy": {"enabled": True, "clientNamespaces": ["jobs"]},
        "metrics": {"serviceMonitor": {"enabled": True}},
        "imagePullSecrets": ["registry"],
    },
}
"""Ways to install it."""

Object = dict[str, Any]


@pytest.fixture(scope="session")
def helm() -> Path:
    if lacking("helm"):
        leave_out("not built yet: helm (make binaries ONLY=cluster)", unless="EVENKEEL_KUBERNETES")
    return find("helm")


def call(helm: Path, *arguments: str | Path, values: Object | None = None) -> subprocess.CompletedProcess[str]:
    given = () if values is None else ("--values=-",)
    stdin = msgspec.json.encode(values).decode() if values is not None else None
    return subprocess.run(
        [helm, *arguments, *given], input=stdin, capture_output=True, text=True, check=False, timeout=60
    )


def render(helm: Path, values: Object) -> list[Object]:
    done = call(
        helm, "template", "evenkeel", CHART, "--namespace=system", "--kube-version=1.34.0", "--include-crds",
        values=values,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [found for found in objects if found["kind"] == kind]


def pods(objects: list[Object]) -> list[Object]:
    """The specs of all pods, wherever they are written."""
    owners = [found for found in objects if found["kind"] in ("Deployment", "StatefulSet", "Job")]
    return [o["spec"]["template"]["spec"] for o in owners] + [o["spec"] for o in of_kind(objects, "Pod")]


def operator_arguments(objects: list[Object]) -> list[str]:
    [deployment] = of_kind(objects, "Deployment")
    arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


def test_lint(helm: Path) -> None:
    """Helm itself has nothing to complain of."""
    done = call(helm, "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", NAMED)
def test_pods_are_restricted(helm: Path, name: str) -> None:
    """Every container runs as nobody, without privileges, on a root file system it cannot write."""
    found = pods(render(helm, NAMED[name]))
    assert len(found) >= 3
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("name", NAMED)
def test_the_operator_takes_its_flags(helm: Path, name: str, tmp_path: Path) -> None:
    """What the chart gives the operator is what the operator reads."""
    password = tmp_path / "password"
    password.write_text("secret")
    arguments = [
        argument.replace("$(NAMESPACE)", "system")
        .replace("$(POD_NAME)", "evenkeel-0")
        .replace("/etc/evenkeel/etcd/password", str(password))
        for argument in operator_arguments(render(helm, NAMED[name]))
    ]
    options = parse_options(arguments, {"EVENKEEL_ETCD_USER": "evenkeel"} if name == "external" else {})
    assert options.term.own_namespace == "system"
    assert options.term.pods.tls is (name != "plain")
    assert options.term.nodes is (name != "one-namespace")
    assert options.term.namespaces == (("system",) if name == "one-namespace" else ())
    assert options.term.etcd_service == ("" if name == "external" else "evenkeel-etcd")


def test_crds_are_those_of_the_models(helm: Path) -> None:
    """The chart upgrades the very CRDs of crds/, and an uninstall leaves them, or tables would go with it."""
    found = {crd["metadata"]["name"]: crd for crd in of_kind(render(helm, {}), "CustomResourceDefinition")}
    files = [yaml.safe_load(file.read_text()) for file in (ROOT / "crds").glob("*.yaml")]
    assert {name: crd["spec"] for name, crd in found.items()} == {f["metadata"]["name"]: f["spec"] for f in files}
    assert all(crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in found.values())


def test_one_namespace_takes_no_cluster_wide_grant(helm: Path) -> None:
    """Where it serves its own namespace and reads no Nodes, nothing is granted elsewhere."""
    objects = render(helm, NAMED["one-namespace"])
    assert of_kind(objects, "ClusterRoleBinding") == []
    bindings = of_kind(objects, "RoleBinding")
    assert {found["metadata"].get("namespace", "system") for found in bindings} == {"system"}


def test_secrets_are_never_listed(helm: Path) -> None:
    """No role lets the operator see Secrets that it does not know by name."""
    for role in (*of_kind(render(helm, {}), "ClusterRole"), *of_kind(render(helm, {}), "Role")):
        for rule in role["rules"]:
            if "secrets" in rule["resources"]:
                assert not {"list", "watch", "*"} & set(rule["verbs"]), role["metadata"]["name"]


def test_an_external_etcd_leaves_none_of_our_own(helm: Path) -> None:
    """With endpoints given there is no StatefulSet, and the operator gets what it has to show."""
    objects = render(helm, NAMED["external"])
    assert of_kind(objects, "StatefulSet") == []
    arguments = operator_arguments(objects)
    assert "--etcd-endpoints=https://etcd.example:2379" in arguments
    assert "--etcd-ca=/etc/evenkeel/etcd/ca.crt" in arguments


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"operatr": {}}, "operatr"),
        ({"etcd": {"members": 2}}, "members"),
        ({"etcd": {"bundled": False}}, "endpoints"),
        ({"rbac": {"scope": "galaxy"}}, "scope"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"etcd": {"external": {"endpoints": ["etcd.example"]}}}, "endpoints"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_values_are_refused(helm: Path, values: Object, named: str) -> None:
    """What cannot be meant is refused before anything is installed, by its name."""
    done = call(helm, "template", "evenkeel", CHART, "--kube-version=1.34.0", values=values)
    assert done.returncode != 0
    assert named in done.stderr

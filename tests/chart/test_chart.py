"""The chart: what it renders, and which values it rejects."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from e2e.cluster.binaries import find, lacking
from e2e.cluster.layers import leave_out
from evenkeel.kube.object_kinds import CERTIFICATE, ISSUER
from evenkeel.model.crd import SCHEMA_ANNOTATION, schema_hashes
from evenkeel.model.storecluster import StoreCluster
from evenkeel_operator.kinds import KINDS
from evenkeel_operator.manifests.pod_settings import CertManagerSettings
from evenkeel_operator.manifests.stateful_set import service
from evenkeel_operator.process.operator_options import parse_options
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
        "metrics": {"serviceMonitor": {"enabled": True}, "dashboard": {"enabled": True}},
        "imagePullSecrets": ["registry"],
    },
    "cert-manager": {"tls": {"source": "cert-manager"}},
    "company": {"tls": {"source": "cert-manager", "certManager": {"issuer": {"kind": "Issuer", "name": "company"}}}},
}
"""Ways to install it."""

Object = dict[str, Any]


@pytest.fixture(scope="session")
def helm() -> Path:
    if lacking("helm"):
        leave_out("not built yet: helm (make binaries ONLY=cluster)")
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
    """Return the specs of all pods."""
    owners = [found for found in objects if found["kind"] in ("Deployment", "StatefulSet", "Job")]
    return [o["spec"]["template"]["spec"] for o in owners] + [o["spec"] for o in of_kind(objects, "Pod")]


def operator_arguments(objects: list[Object]) -> list[str]:
    [deployment] = of_kind(objects, "Deployment")
    arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


def test_lint(helm: Path) -> None:
    """Helm's linter reports no problem."""
    done = call(helm, "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", NAMED)
def test_pods_are_restricted(helm: Path, name: str) -> None:
    """Every container runs without root and privileges, on a read-only root file system."""
    found = pods(render(helm, NAMED[name]))
    assert len(found) >= 3
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("name", NAMED)
def test_the_operator_accepts_its_flags(helm: Path, name: str, tmp_path: Path) -> None:
    """The operator parses the flags that the chart passes."""
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
    ours = not name.startswith(("external", "cert-manager", "company"))
    assert options.term.etcd_service == ("evenkeel-etcd" if ours else "")
    assert options.term.etcd_note == ("" if name == "external" else "evenkeel-etcd")
    issuers = {
        "cert-manager": CertManagerSettings(),
        "company": CertManagerSettings(issuer_kind="Issuer", issuer="company"),
    }
    assert options.term.cert_manager == issuers.get(name)


def test_crds_are_those_of_the_models(helm: Path) -> None:
    """The chart installs the CRDs of crds/, and an uninstall keeps them, because tables would go with them."""
    found = {crd["metadata"]["name"]: crd for crd in of_kind(render(helm, {}), "CustomResourceDefinition")}
    files = [yaml.safe_load(file.read_text()) for file in (ROOT / "crds").glob("*.yaml")]
    assert {name: crd["spec"] for name, crd in found.items()} == {f["metadata"]["name"]: f["spec"] for f in files}
    assert all(crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in found.values())
    assert {n: crd["metadata"]["annotations"][SCHEMA_ANNOTATION] for n, crd in found.items()} == dict(schema_hashes())


def test_one_namespace_needs_no_cluster_wide_permission(helm: Path) -> None:
    """An operator of one namespace without Nodes has no permissions elsewhere."""
    objects = render(helm, NAMED["one-namespace"])
    assert of_kind(objects, "ClusterRoleBinding") == []
    bindings = of_kind(objects, "RoleBinding")
    assert {found["metadata"].get("namespace", "system") for found in bindings} == {"system"}


def granted(objects: list[Object], resource: str, group: str) -> set[str]:
    """Return the verbs that the operator's ClusterRoles grant."""
    mine = ("evenkeel-system", "evenkeel-system-nodes")
    roles = [role for role in of_kind(objects, "ClusterRole") if role["metadata"]["name"] in mine]
    rules = [rule for role in roles for rule in role["rules"]]
    found = [rule for rule in rules if group in rule["apiGroups"] and resource in rule["resources"]]
    return {verb for rule in found for verb in rule["verbs"]}


def test_every_watched_kind_is_granted(helm: Path) -> None:
    """The operator may list and watch each kind it declares, write the statuses, and set finalizers."""
    objects = render(helm, {})
    for watched in KINDS:
        group, plural = watched.kind.group, watched.kind.plural
        assert granted(objects, plural, group) >= {"get", "list", "watch"}, plural
        assert (granted(objects, f"{plural}/status", group) >= {"update", "patch"}) is (watched.status is not None)
        assert (granted(objects, f"{plural}/finalizers", group) >= {"update"}) is watched.finalized, plural


def test_nodes_are_granted_only_if_they_are_read(helm: Path) -> None:
    """Without `rbac.nodes` the operator has no access to the kinds that need it."""
    objects = render(helm, {"rbac": {"nodes": False}})
    for watched in KINDS:
        assert bool(granted(objects, watched.kind.plural, watched.kind.group)) is not watched.needs_node_access


def test_secrets_are_never_listed(helm: Path) -> None:
    """No role allows listing Secrets."""
    for role in (*of_kind(render(helm, {}), "ClusterRole"), *of_kind(render(helm, {}), "Role")):
        for rule in role["rules"]:
            if "secrets" in rule["resources"]:
                assert not {"list", "watch", "*"} & set(rule["verbs"]), role["metadata"]["name"]


def test_an_external_etcd_replaces_the_bundled_one(helm: Path) -> None:
    """With endpoints there is no StatefulSet, and the operator gets the credentials."""
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
        ({"tls": {"source": "vault"}}, "source"),
        ({"metrics": {"dashboard": {"labels": {"grafana_dashboard": 1}}}}, "grafana_dashboard"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"etcd": {"external": {"endpoints": ["etcd.example"]}}}, "endpoints"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_values_are_rejected(helm: Path, values: Object, named: str) -> None:
    """Invalid values are rejected by name before anything is installed."""
    done = call(helm, "template", "evenkeel", CHART, "--kube-version=1.34.0", values=values)
    assert done.returncode != 0
    assert named in done.stderr


def dashboard(objects: list[Object]) -> Any:
    [text] = [
        found["data"]["evenkeel.json"] for found in of_kind(objects, "ConfigMap") if "evenkeel.json" in found["data"]
    ]
    return msgspec.json.decode(text)


def test_the_dashboard_is_optional(helm: Path) -> None:
    """Grafana's sidecar finds the dashboard by its label; by default there is none, nor a ServiceMonitor."""
    [found] = [
        o for o in of_kind(render(helm, NAMED["extras"]), "ConfigMap") if o["metadata"]["name"].endswith("dashboard")
    ]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    plain = render(helm, {})
    assert [o for o in of_kind(plain, "ConfigMap") if o["metadata"]["name"].endswith("dashboard")] == []
    assert of_kind(plain, "ServiceMonitor") == []


def test_the_dashboard_uses_documented_metrics(helm: Path) -> None:
    """Other tests verify that the pages list exactly the exported metrics."""
    pages = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("operator", "sidecar", "store"))
    documented = set(re.findall(r"`(evenkeel_(?:operator|raft|store)_\w+)`", pages))
    board = dashboard(render(helm, NAMED["extras"]))
    shown = [panel for panel in board["panels"] if panel["type"] != "row"]
    asked = [target["expr"] for panel in shown for target in panel["targets"]]
    asked += [variable["query"] for variable in board["templating"]["list"]]
    names = set(re.findall(r"evenkeel_\w+", " ".join(asked)))
    assert names <= documented
    assert {name.split("_")[1] for name in names} == {"operator", "raft", "store"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_dashboard_uses_rates_of_counters(helm: Path) -> None:
    """Counters are shown by their rate, gauges by their value."""
    for panel in dashboard(render(helm, NAMED["extras"]))["panels"]:
        for target in panel.get("targets", ()):
            [name] = re.findall(r"evenkeel_\w+", target["expr"])
            assert ("rate(" in target["expr"]) is name.endswith("_total"), target["expr"]


def test_service_monitors_find_their_services(helm: Path) -> None:
    """Their labels and ports match the Services of the chart and of the operator."""
    objects = render(helm, NAMED["extras"])
    cluster = StoreCluster.model_validate(
        {"metadata": {"name": "main", "namespace": "shop"}, "spec": {"stores": 3, "storage": {"size": "1Gi"}}}
    )
    services = [*of_kind(objects, "Service"), service(cluster)]
    for monitor in of_kind(objects, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        [found] = [one for one in services if wanted <= one["metadata"]["labels"].items()]
        assert {end["port"] for end in monitor["spec"]["endpoints"]} <= {
            port["name"] for port in found["spec"]["ports"]
        }
    assert len(of_kind(objects, "ServiceMonitor")) == 2


def test_only_served_namespaces_are_monitored(helm: Path) -> None:
    """The ServiceMonitor selects the served namespaces."""
    values = {**NAMED["extras"], "rbac": {"scope": "namespace", "namespaces": ["shop", "jobs"]}}
    monitors = {o["metadata"]["name"]: o["spec"] for o in of_kind(render(helm, values), "ServiceMonitor")}
    assert monitors["evenkeel-stores"]["namespaceSelector"] == {"matchNames": ["shop", "jobs"]}


def test_cert_manager_signs_for_etcd(helm: Path) -> None:
    """A Certificate with an existing Issuer fills every Secret that pods mount."""
    objects = render(helm, NAMED["cert-manager"])
    certificates, issuers = of_kind(objects, CERTIFICATE.name), of_kind(objects, ISSUER.name)
    filled = {one["spec"]["secretName"] for one in certificates}
    mounted = {
        volume["secret"]["secretName"]
        for pod in pods(objects)
        for volume in pod.get("volumes", ())
        if "secret" in volume
    }
    assert mounted <= filled
    assert {one["spec"]["issuerRef"]["name"] for one in certificates} == {one["metadata"]["name"] for one in issuers}
    [role] = [o for o in of_kind(objects, "ClusterRole") if o["metadata"]["name"] == "evenkeel-system"]
    assert any("certificates" in rule["resources"] for rule in role["rules"])
    assert not any(of_kind(render(helm, {}), kind.name) for kind in (CERTIFICATE, ISSUER))


def test_a_full_etcd_is_not_restarted(helm: Path) -> None:
    """`/health` fails while the quota is used up, but restarts free no space."""
    [etcd] = of_kind(render(helm, NAMED["bundled"]), "StatefulSet")
    [container] = etcd["spec"]["template"]["spec"]["containers"]
    paths = {
        probe: container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}

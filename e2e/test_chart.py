"""The chart with other values: each installation serves a table, and loses no acknowledged row."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from e2e.certmanager import cert_manager, renew
from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.provider import Cluster
from e2e.external_etcd import ExternalEtcd
from e2e.release import CHART, Install
from e2e.shop import Shop

CRD = "tables.evenkeel.dev"


def verify(shop: Shop) -> None:
    """Check that everything is ready, writes continue, none has failed and no row is lost."""
    shop.settle()
    shop.wait_for_writes()
    found = shop.check()
    assert found.failed == 0, found.errors


def read(file: Path) -> Any:
    return msgspec.yaml.decode(file.read_bytes())


def test_one_small_node(install: Install, namespace: str) -> None:
    """`values-dev.yaml` with policies and a dashboard passes `helm test`; an uninstall is refused with tables."""
    extras = {
        "networkPolicy": {"enabled": True, "clientNamespaces": [namespace]},
        "metrics": {"dashboard": {"enabled": True}},
    }
    release, shop = install(read(CHART / "values-dev.yaml"), extras)
    assert "Succeeded" in release.test()
    where = f"--namespace={release.namespace}"
    policies = {found["metadata"]["name"] for found in release.kubectl.items("networkpolicies", where)}
    assert policies == {"evenkeel-etcd", "evenkeel-stores"}
    assert release.kubectl.get("configmap/evenkeel-dashboard", where)["metadata"]["labels"]["grafana_dashboard"] == "1"
    shop.open(stores=1, replicas=1)
    shop.start_client()
    with pytest.raises(ClusterError):
        release.uninstall()
    verify(shop)


def test_somebody_elses_etcd(cluster: Cluster, install: Install, namespace: str) -> None:
    """An external etcd with certificates and a password, named namespaces, and no access to Nodes."""
    etcd = ExternalEtcd(cluster.kubectl, namespace)
    etcd.start()
    cluster.kubectl("create", "namespace", "evenkeel")
    scope = {"rbac": {"scope": "namespace", "namespaces": [namespace], "nodes": False}}
    release, shop = install(etcd.give_access("evenkeel"), scope)
    assert release.kubectl.items("statefulsets", f"--namespace={release.namespace}") == []
    assert "evenkeel-evenkeel" not in cluster.kubectl("get", "clusterrolebindings", "--output=name")
    shop.open(replicas=1)
    shop.start_client()
    shop.scale("table/orders", 3)
    verify(shop)
    assert shop.status("storecluster/main")["zonesFrom"] == "None"


def test_the_next_release(cluster: Cluster, install: Install, tmp_path: Path) -> None:
    """Without TLS, from a chart with older CRDs: the upgrade installs the new CRDs, and writes continue."""
    plain = {"tls": {"enabled": False}}
    _, shop = install(plain, chart=_older_chart(tmp_path))
    assert "approval" not in _fields(cluster)
    shop.open()
    shop.start_client()
    assert shop.run("get", "secret/main-client", "--output=jsonpath={.data.ca\\.crt}") == ""
    install(plain)
    assert "approval" in _fields(cluster)
    shop.run("patch", "table/orders", "--type=merge", '--patch={"spec":{"approval":"Auto","replicas":1}}')
    verify(shop)


def _fields(cluster: Cluster) -> set[str]:
    """Return the schema of a Table's spec in the API server."""
    [version] = cluster.kubectl.get(f"crd/{CRD}")["spec"]["versions"]
    return set(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


def _older_chart(folder: Path) -> Path:
    """Return a chart whose CRD lacks the field `approval`."""
    chart = folder / "evenkeel"
    shutil.copytree(CHART, chart)
    [file] = [file for file in (chart / "files" / "crds").iterdir() if read(file)["metadata"]["name"] == CRD]
    crd = read(file)
    [version] = crd["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["approval"]
    file.write_bytes(msgspec.yaml.encode(crd))
    description = chart / "Chart.yaml"
    description.write_bytes(msgspec.yaml.encode({**read(description), "version": "0.0.9"}))
    return chart


@pytest.fixture
def _cert_manager(cluster: Cluster) -> Iterator[None]:
    with cert_manager(cluster):
        yield


@pytest.mark.usefixtures("_cert_manager")
def test_cert_manager(install: Install, namespace: str) -> None:
    """cert-manager issues certificates for etcd and stores; renewed ones are used, all are removed at the end."""
    release, shop = install({"tls": {"source": "cert-manager"}})
    shop.open()
    shop.start_client()
    kubectl, stores, authority = release.kubectl, shop.uids(), _authority(shop)
    renew(kubectl, "main-tls", namespace=namespace)
    # Triggers a reconciliation, which would otherwise follow within five minutes.
    shop.run("annotate", "storecluster/main", "reconcile=now")
    shop.wait_for_others(stores, within=240)
    verify(shop)
    assert _authority(shop) == authority
    where = f"--namespace={release.namespace}"
    for certificate in ("evenkeel-etcd", "evenkeel-etcd-client"):
        renew(kubectl, certificate, namespace=release.namespace)
    kubectl("rollout", "restart", "statefulset/evenkeel-etcd", where)
    kubectl("rollout", "status", "statefulset/evenkeel-etcd", where, "--timeout=180s", within=190)
    shop.scale("table/orders", 1)
    verify(shop)
    shop.close()
    kubectl.wait("nothing is left", lambda: not _left(shop), within=60)


def _authority(shop: Shop) -> str:
    """Return the certificate authority in the client Secret, which is cert-manager's."""
    where = f"--namespace={shop.namespace}"
    secret = shop.kubectl.get("secret/main-tls", where)
    annotations = secret["metadata"]["annotations"]
    assert annotations["cert-manager.io/certificate-name"] == "main-tls"
    assert annotations["evenkeel.dev/owner"] == shop.kubectl.get(shop.cluster_name, where)["metadata"]["uid"]
    published = shop.kubectl.get("secret/main-client", where)["data"]["ca.crt"]
    assert published == secret["data"]["ca.crt"]
    return str(published)


def _left(shop: Shop) -> list[str]:
    return [*shop.left(), *shop.run("get", "certificates,issuers", "--output=name").split()]

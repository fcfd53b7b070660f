"""The clusters that all other tests use: they work, faults take effect, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import web
from e2e.cluster import netns
from e2e.cluster.cluster_errors import ClusterError, UnavailableError
from e2e.cluster.kubectl import Kubectl, holds
from e2e.cluster.layers import leave_out
from e2e.cluster.netns import NetnsCluster
from e2e.cluster.processes import run, wait_until
from e2e.cluster.provider import Cluster
from tests.repository.tree import ROOT

_ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
_RESOLVE = "import sys, socket; print(socket.gethostbyname(sys.argv[1]))"


class Web:
    """The application of `e2e/web.py` in one namespace."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self._kubectl = kubectl
        self.namespace = namespace

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self._kubectl.pods(f"app={web.NAME}", namespace=self.namespace)
        return {pod["metadata"]["name"]: pod for pod in found}

    def node_of(self, pod: str) -> str:
        return str(self.pods()[pod]["spec"]["nodeName"])

    def ready(self) -> set[str]:
        return {name for name, pod in self.pods().items() if holds(pod, "Ready")}

    def wait_ready(self, *, within: float = 90.0) -> None:
        self._kubectl.wait("all pods are Ready", lambda: len(self.ready()) == 3, within=within)

    def python(self, pod: str, code: str, *arguments: str) -> str:
        return self._kubectl.execute(
            pod, "python3", "-c", code, *arguments, namespace=self.namespace, container="main"
        ).strip()

    def ask(self, pod: str, other: str) -> str:
        """Return the answer of another pod, addressed by name."""
        return self.python(pod, _ASK, f"http://{other}.{web.NAME}:8080/").split()[0]

    def names_on_disk(self, pod: str) -> list[str]:
        return self.python(pod, "print(open('/data/names').read())").split()


@pytest.fixture(scope="module")
def app(cluster: Cluster, python_image: str) -> Iterator[Web]:
    kubectl, namespace = cluster.kubectl, f"evenkeel-web-{os.getpid()}"
    cluster.add_volumes(1, owner=web.OWNER)
    kubectl("create", "namespace", namespace)
    kubectl.apply(*web.objects(python_image, storage_class=cluster.storage_class), namespace=namespace)
    app = Web(kubectl, namespace)
    app.wait_ready()
    yield app
    kubectl("delete", "namespace", namespace, "--wait=false")


def test_nodes_are_ready(cluster: Cluster) -> None:
    """Three nodes accept pods."""
    assert len(cluster.kubectl.workers()) >= 3
    assert all(cluster.kubectl.nodes().values())


def test_pods_are_ready(app: Web) -> None:
    """A StatefulSet with native sidecars, shared sockets and volumes becomes Ready, with one pod on each node."""
    pods = app.pods()
    assert set(pods) == {"web-0", "web-1", "web-2"}
    assert len({app.node_of(pod) for pod in pods}) == 3
    for name, pod in pods.items():
        [sidecar] = pod["status"]["initContainerStatuses"]
        assert sidecar["started"], name


def test_names_resolve(app: Web, cluster: Cluster) -> None:
    """The cluster's DNS resolves short and full names of Services and pods."""
    address = cluster.kubectl.get("service/kubernetes")["spec"]["clusterIP"]
    assert app.python("web-0", _RESOLVE, "kubernetes.default") == address
    assert app.python("web-0", _RESOLVE, "kubernetes.default.svc.cluster.local") == address
    assert app.python("web-0", _RESOLVE, "web-1.web") == app.pods()["web-1"]["status"]["podIP"]


def test_pods_reach_each_other(app: Web) -> None:
    """Every pod reaches every other one by name, across nodes, and itself."""
    pods = sorted(app.pods())
    assert {(pod, other): app.ask(pod, other) for pod in pods for other in pods} == {
        (pod, other): other for pod in pods for other in pods
    }


def test_pods_reach_the_api_server(app: Web) -> None:
    """A pod reaches the API server by its Service, with the cluster's authority and its own token."""
    code = """
import ssl, urllib.request
base = "/var/run/secrets/kubernetes.io/serviceaccount/"
request = urllib.request.Request("https://kubernetes.default/version")
request.add_header("Authorization", "Bearer " + open(base + "token").read())
context = ssl.create_default_context(cafile=base + "ca.crt")
print(urllib.request.urlopen(request, timeout=5, context=context).status)
"""
    assert app.python("web-0", code) == "200"


def test_killed_node_comes_back(cluster: Cluster, app: Web) -> None:
    """A killed node is NotReady within seconds; after its restart its pod is back, with its disk."""
    node = app.node_of("web-1")
    lives = len(app.names_on_disk("web-1"))
    cluster.kill_node(node)
    try:
        cluster.kubectl.wait(f"{node} is NotReady", lambda: not cluster.kubectl.nodes()[node], within=30)
        assert app.ask("web-0", "web-2") == "web-2"
    finally:
        cluster.start_node(node)
    cluster.kubectl.wait(f"{node} is Ready", lambda: cluster.kubectl.nodes()[node])
    app.wait_ready()
    assert app.node_of("web-1") == node
    assert app.names_on_disk("web-1") == ["web-1"] * (lives + 1)
    assert app.ask("web-0", "web-1") == "web-1"


def test_partitioned_node_comes_back(cluster: Cluster, app: Web) -> None:
    """A disconnected node is NotReady, though its processes keep running; reconnected, it is Ready again."""
    node = app.node_of("web-2")
    cluster.partition_node(node)
    try:
        cluster.kubectl.wait(f"{node} is NotReady", lambda: not cluster.kubectl.nodes()[node], within=30)
    finally:
        cluster.heal_node(node)
    cluster.kubectl.wait(f"{node} is Ready", lambda: cluster.kubectl.nodes()[node])
    app.wait_ready()
    assert app.ask("web-0", "web-2") == "web-2"


def test_api_server_comes_back(cluster: Cluster, app: Web) -> None:
    """While the API server is down kubectl fails; afterwards all nodes are Ready, and no pod was restarted."""
    before = {name: pod["metadata"]["uid"] for name, pod in app.pods().items()}
    cluster.kill_api_server()
    try:
        with pytest.raises(ClusterError, match="refused"):
            cluster.kubectl.nodes()
    finally:
        cluster.start_api_server()
    cluster.kubectl.wait("all nodes are Ready", lambda: all(cluster.kubectl.nodes().values()))
    assert {name: pod["metadata"]["uid"] for name, pod in app.pods().items()} == before
    app.wait_ready()


def test_drain(cluster: Cluster, app: Web) -> None:
    """A drained node evicts its pod, which waits for the node that has its volume."""
    node = app.node_of("web-0")
    cluster.drain_node(node)
    try:
        assert "web-0" not in app.ready()
        assert len(app.ready()) == 2
    finally:
        cluster.uncordon_node(node)
    app.wait_ready()
    assert app.node_of("web-0") == node


def traces(cluster: NetnsCluster) -> list[str]:
    """Return what exists of a cluster on this machine, independently of the cluster's own check."""
    prefix, folder = f"evenkeel-{cluster.name}-", str(cluster.folder)
    found = [line for line in run("ip", "netns", "list").splitlines() if line.startswith(prefix)]
    found += [line for line in run("ip", "-details", "link").splitlines() if prefix in line]
    found += run("find", "/sys/fs/cgroup", "-type", "d", "-name", f"{prefix}*").split()
    found += [line for line in run("findmnt", "--list", "--noheadings").splitlines() if folder in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            known = (process / "cmdline").read_text() + (process / "cgroup").read_text()
        except OSError:
            continue
        if f"{folder}/" in known or f"/{prefix}" in known:
            found.append(f"{process}: {known[:200]}")
    return found


@pytest.fixture
def _netns() -> None:
    try:
        netns.check()
    except UnavailableError as error:
        leave_out(f"there is no cluster: {error}")


@pytest.mark.usefixtures("_netns")
def test_nothing_is_left() -> None:
    """A cluster that was taken down leaves no process, namespace, interface, mount, cgroup or file."""
    with netns.kept(f"e2e-{os.getpid()}-left", nodes=1) as cluster:
        assert len(traces(cluster)) > 10
        cluster.partition_node("node-1")
    assert traces(cluster) == []
    assert not cluster.folder.exists()


@pytest.mark.usefixtures("_netns")
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda sign: sign.name)
def test_nothing_is_left_by_the_dead(sign: signal.Signals, tmp_path: Path) -> None:
    """A process that is interrupted, terminated or killed with a cluster leaves nothing either."""
    name = f"e2e-{os.getpid()}-{sign.name.lower()}"
    log = tmp_path / "log"
    code = f"""
from e2e.cluster import netns
with netns.kept({name!r}, nodes=1, say=lambda what: print(what, flush=True)):
    pass
"""
    with log.open("wb") as output:
        owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=output, stderr=output)
    wait_until("the API server is up", lambda: "API server" in log.read_text(), within=60, why=log.read_text)
    cluster = NetnsCluster.load(name)
    owner.send_signal(sign)
    assert owner.wait(timeout=60) != 0
    wait_until("the cluster is gone", lambda: name not in netns.clusters(), within=60)
    assert traces(cluster) == []

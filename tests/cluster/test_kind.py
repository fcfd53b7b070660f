"""The provider kind, with stand-ins for kind and Docker that record their calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import kind
from e2e.cluster.cluster_errors import ClusterError, UnavailableError, UnsupportedError
from tests.repository.tree import ROOT


class Tools:
    """A PATH with the given programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "log"

    def add(self, name: str, script: str = "") -> None:
        file = self.folder / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self._log}"\n{script}\n')
        file.chmod(0o755)

    def calls(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("EVENKEEL_CACHE", str(tmp_path / "cache"))
    tools = Tools(tmp_path)
    for name in ("kind", "docker", "kubectl"):
        tools.add(name)
    return tools


def test_life(tools: Tools) -> None:
    """A cluster is created from our configuration, gets images, loses and regains a node, and is deleted."""
    config = f"{tools.folder}/cache/kind/dev/kubeconfig"
    options = f"--config {ROOT}/e2e/cluster/kind.yaml --kubeconfig {config} --wait=300s"
    with kind.kept("dev") as cluster:
        cluster.load_images(Path("one.tar"))
        cluster.kill_node("evenkeel-dev-worker")
        cluster.start_node("evenkeel-dev-worker")
        cluster.kubectl("get", "nodes")
    assert [call for call in tools.calls() if call != "docker info"] == [
        f"kind create cluster --name evenkeel-dev {options}",
        "kind load image-archive one.tar --name evenkeel-dev",
        "docker kill evenkeel-dev-worker",
        "docker start evenkeel-dev-worker",
        f"kubectl --kubeconfig {config} get nodes",
        f"kind delete cluster --name evenkeel-dev --kubeconfig {config}",
    ]


def test_removed_after_a_failure(tools: Tools) -> None:
    """A cluster that fails to start is deleted again."""
    tools.add("kind", '[ "$1" = delete ]')
    with pytest.raises(ClusterError, match="create cluster"), kind.kept("dev"):
        pass
    assert "kind delete cluster" in tools.calls()[-1]


def test_without_docker(tools: Tools) -> None:
    """If Docker or kind is missing, that is the reason given."""
    tools.add("docker", "exit 1")
    with pytest.raises(UnavailableError, match="Docker does not answer"):
        kind.check()
    (tools.folder / "kind").unlink()
    with pytest.raises(UnavailableError, match="kind is not installed"):
        kind.check()


def test_faults_it_cannot_do(tools: Tools) -> None:
    """A fault that kind cannot cause is refused, with the provider that can."""
    cluster = kind.KindCluster("dev")
    with pytest.raises(UnsupportedError, match="use netns"):
        cluster.partition_node("worker")
    with pytest.raises(UnsupportedError, match="use netns"):
        cluster.kill_api_server()

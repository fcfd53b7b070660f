"""Provider `kind`: nodes are Docker containers. It needs a registry, but not root."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.binaries import cache_dir
from e2e.cluster.cluster_errors import UnavailableError, UnsupportedError
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.processes import run, succeeds

__all__ = ["KindCluster", "check", "kept"]

_CONFIG = Path(__file__).with_name("kind.yaml")
_START_SECONDS = 600.0


def check() -> None:
    """Raise UnavailableError with the reason if kind cannot run."""
    if shutil.which("kind") is None:
        raise UnavailableError("kind is not installed; see https://kind.sigs.k8s.io")
    if not succeeds("docker", "info"):
        raise UnavailableError("Docker does not answer, and kind needs it; start Docker")


class KindCluster:
    """A cluster with the three workers of `kind.yaml`."""

    storage_class = "standard"

    def __init__(self, name: str) -> None:
        self.name = f"evenkeel-{name}"
        self.kubeconfig = cache_dir() / "kind" / name / "kubeconfig"
        self.kubectl = Kubectl(self.kubeconfig)

    def up(self) -> None:
        """Create the cluster, and wait until its nodes are Ready."""
        check()
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        options = ("--config", _CONFIG, "--kubeconfig", self.kubeconfig, "--wait=300s")
        run("kind", "create", "cluster", "--name", self.name, *options, within=_START_SECONDS)

    def down(self) -> None:
        """Remove the containers of the cluster."""
        run("kind", "delete", "cluster", "--name", self.name, "--kubeconfig", self.kubeconfig)
        shutil.rmtree(self.kubeconfig.parent, ignore_errors=True)

    def load_images(self, *archives: Path) -> None:
        """Load images onto every node."""
        for archive in archives:
            run("kind", "load", "image-archive", archive, "--name", self.name, within=_START_SECONDS)

    def add_volumes(self, count: int, *, owner: int) -> None:
        """Do nothing: kind's StorageClass provisions volumes that every user may write."""

    def kill_node(self, node: str) -> None:
        """Kill the node's container."""
        run("docker", "kill", node)

    def start_node(self, node: str) -> None:
        """Start the node's container again."""
        run("docker", "start", node)

    def partition_node(self, node: str) -> None:
        """Not here."""
        raise UnsupportedError("the provider kind cannot disconnect a node; use netns")

    heal_node = partition_node

    def cordon_node(self, node: str) -> None:
        """Cordon a node."""
        self.kubectl.cordon(node)

    def uncordon_node(self, node: str) -> None:
        """Uncordon a node."""
        self.kubectl.uncordon(node)

    def drain_node(self, node: str) -> None:
        """Drain a node, as PodDisruptionBudgets allow."""
        self.kubectl.drain(node)

    def kill_api_server(self) -> None:
        """Not here."""
        raise UnsupportedError("under kind the kubelet restarts the API server at once; use netns")

    start_api_server = kill_api_server


@contextlib.contextmanager
def kept(name: str) -> Iterator[KindCluster]:
    """Yield a cluster that is removed at the end of the block."""
    check()
    cluster = KindCluster(name)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()

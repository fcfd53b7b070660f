"""The provider `kind`: nodes are Docker's containers, from an image that Docker pulls. No root, but a registry."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.binaries import cache_dir
from e2e.cluster.errors import UnavailableError, UnsupportedError
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.process import run, succeeds

__all__ = ["KindCluster", "check", "kept"]

_CONFIG = Path(__file__).with_name("kind.yaml")
_START_SECONDS = 600.0


def check() -> None:
    """Raise UnavailableError with the reason where kind cannot run."""
    if shutil.which("kind") is None:
        raise UnavailableError("kind is not installed: https://kind.sigs.k8s.io")
    if not succeeds("docker", "info"):
        raise UnavailableError("Docker does not answer, and kind's nodes are its containers")


class KindCluster:
    """Three workers, as `kind.yaml` has them; nodes are named after the cluster."""

    storage_class = "standard"

    def __init__(self, name: str) -> None:
        self.name = f"evenkeel-{name}"
        self.kubeconfig = cache_dir() / "kind" / name / "kubeconfig"
        self.kubectl = Kubectl(self.kubeconfig)

    def up(self) -> None:
        """Make it, and wait until its nodes are Ready."""
        check()
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        options = ("--config", _CONFIG, "--kubeconfig", self.kubeconfig, "--wait=300s")
        run("kind", "create", "cluster", "--name", self.name, *options, within=_START_SECONDS)

    def down(self) -> None:
        """Remove its containers."""
        run("kind", "delete", "cluster", "--name", self.name, "--kubeconfig", self.kubeconfig)
        shutil.rmtree(self.kubeconfig.parent, ignore_errors=True)

    def load_images(self, *archives: Path) -> None:
        """Give every node these images."""
        for archive in archives:
            run("kind", "load", "image-archive", archive, "--name", self.name, within=_START_SECONDS)

    def add_volumes(self, count: int, *, owner: int) -> None:
        """Nothing to do: kind's class makes a volume for every claim, and everyone may write there."""

    def kill_node(self, node: str) -> None:
        """Kill its container."""
        run("docker", "kill", node)

    def start_node(self, node: str) -> None:
        """Start its container again."""
        run("docker", "start", node)

    def partition_node(self, node: str) -> None:
        """Not here."""
        raise UnsupportedError("the provider kind cannot pull a node's cable; netns can")

    heal_node = partition_node

    def cordon_node(self, node: str) -> None:
        """Let no new pod go there."""
        self.kubectl.cordon(node)

    def uncordon_node(self, node: str) -> None:
        """Let pods go there again."""
        self.kubectl.uncordon(node)

    def drain_node(self, node: str) -> None:
        """Cordon it, and evict its pods as their PodDisruptionBudgets allow."""
        self.kubectl.drain(node)

    def kill_api_server(self) -> None:
        """Not here."""
        raise UnsupportedError(
            "under kind the kubelet would start the API server again at once; netns can keep it away"
        )

    start_api_server = kill_api_server


@contextlib.contextmanager
def kept(name: str) -> Iterator[KindCluster]:
    """A cluster for as long as the block lasts."""
    check()
    cluster = KindCluster(name)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()

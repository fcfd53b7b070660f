"""Selects the provider of the cluster, `EVENKEEL_CLUSTER=netns|kind|current`; all have the same interface."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from e2e.cluster import kind, netns
from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.current import CurrentCluster
from e2e.cluster.kubectl import Kubectl

__all__ = ["PROVIDERS", "Cluster", "chosen", "cluster"]


class Cluster(Protocol):
    """A Kubernetes cluster to test on; UnsupportedError if a provider cannot do something."""

    @property
    def kubectl(self) -> Kubectl:
        """kubectl as administrator."""

    @property
    def storage_class(self) -> str:
        """StorageClass for volume claims."""

    def load_images(self, *archives: Path) -> None:
        """Load images onto every node."""

    def add_volumes(self, count: int, *, owner: int) -> None:
        """Add this many volumes, owned by this user, to every node, unless they are provisioned on demand."""

    def kill_node(self, node: str) -> None:
        """Kill a node."""

    def start_node(self, node: str) -> None:
        """Start a node again, with its disk."""

    def partition_node(self, node: str) -> None:
        """Disconnect a node, which keeps running."""

    def heal_node(self, node: str) -> None:
        """Reconnect a node."""

    def cordon_node(self, node: str) -> None:
        """Cordon a node."""

    def uncordon_node(self, node: str) -> None:
        """Uncordon a node."""

    def drain_node(self, node: str) -> None:
        """Drain a node, as PodDisruptionBudgets allow."""

    def kill_api_server(self) -> None:
        """Kill the API server."""

    def start_api_server(self) -> None:
        """Start the API server again, and wait until it is ready."""


@contextlib.contextmanager
def _current(_: str) -> Iterator[Cluster]:
    yield CurrentCluster()


PROVIDERS: dict[str, Callable[[str], AbstractContextManager[Cluster]]] = {
    "netns": netns.kept,
    "kind": kind.kept,
    "current": _current,
}


def chosen() -> str:
    """Return the provider that the environment names."""
    name = os.environ.get("EVENKEEL_CLUSTER", "netns")
    if name not in PROVIDERS:
        raise ClusterError(f"EVENKEEL_CLUSTER={name} is unknown; there are: {', '.join(PROVIDERS)}")
    return name


def cluster(name: str) -> AbstractContextManager[Cluster]:
    """Yield a cluster of the selected provider."""
    return PROVIDERS[chosen()](name)

"""Whose cluster the tests run on: `EVENKEEL_CLUSTER=netns|kind|current`. They see the same face of each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from e2e.cluster import kind, netns
from e2e.cluster.current import CurrentCluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.kubectl import Kubectl

__all__ = ["PROVIDERS", "Cluster", "chosen", "cluster"]


class Cluster(Protocol):
    """A Kubernetes to test on. What a provider cannot do raises UnsupportedError."""

    @property
    def kubectl(self) -> Kubectl:
        """As administrator."""

    @property
    def storage_class(self) -> str:
        """A class whose volumes can be claimed."""

    def load_images(self, *archives: Path) -> None:
        """Give every node these images."""

    def add_volumes(self, count: int, *, owner: int) -> None:
        """Where volumes are not made on demand: so many more on every node, which belong to this user."""

    def kill_node(self, node: str) -> None:
        """End everything that runs on it, at once."""

    def start_node(self, node: str) -> None:
        """Switch it on again; its disk is as it was."""

    def partition_node(self, node: str) -> None:
        """Cut it off: it runs on, and reaches nobody."""

    def heal_node(self, node: str) -> None:
        """Undo that."""

    def cordon_node(self, node: str) -> None:
        """Let no new pod go there."""

    def uncordon_node(self, node: str) -> None:
        """Let pods go there again."""

    def drain_node(self, node: str) -> None:
        """Cordon it, and evict its pods as their PodDisruptionBudgets allow."""

    def kill_api_server(self) -> None:
        """End it at once."""

    def start_api_server(self) -> None:
        """Start it again, and wait until it is ready."""


@contextlib.contextmanager
def _current(_: str) -> Iterator[Cluster]:
    yield CurrentCluster()


PROVIDERS: dict[str, Callable[[str], AbstractContextManager[Cluster]]] = {
    "netns": netns.kept,
    "kind": kind.kept,
    "current": _current,
}


def chosen() -> str:
    """The provider that the environment names."""
    name = os.environ.get("EVENKEEL_CLUSTER", "netns")
    if name not in PROVIDERS:
        raise ClusterError(f"EVENKEEL_CLUSTER={name} is unknown; there are: {', '.join(PROVIDERS)}")
    return name


def cluster(name: str) -> AbstractContextManager[Cluster]:
    """A cluster of the chosen provider, for as long as the block lasts."""
    return PROVIDERS[chosen()](name)

"""Provider `current`: the cluster of the user's current context, which tests do not create, remove or break."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from e2e.cluster.cluster_errors import ClusterError, UnavailableError, UnsupportedError
from e2e.cluster.images import tags_of
from e2e.cluster.kubectl import WORKERS, Kubectl
from e2e.cluster.processes import run

__all__ = ["CurrentCluster"]

# A kubelet reports its images every 30 s.
_SEEN_SECONDS = 40.0
_LOAD_SECONDS = 600.0
_KIND = "kind-"
"""Prefix of contexts that kind has written; the name of the cluster follows."""
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


class CurrentCluster:
    """A cluster that the tests do not own."""

    def __init__(self) -> None:
        self.kubectl = Kubectl()
        try:
            self.kubectl("version", "--request-timeout=10s")
        except ClusterError as error:
            raise UnavailableError(f"the current context does not answer: {error}") from None
        context = self.kubectl("config", "current-context").strip()
        self._kind = context.removeprefix(_KIND) if context.startswith(_KIND) else ""

    @property
    def storage_class(self) -> str:
        """The default StorageClass."""
        for found in self.kubectl.items("storageclasses"):
            if found["metadata"].get("annotations", {}).get(_DEFAULT) == "true":
                return str(found["metadata"]["name"])
        raise UnsupportedError(f"the cluster has no default StorageClass; annotate one with {_DEFAULT}=true")

    def load_images(self, *archives: Path) -> None:
        """Load images into a kind cluster; on any other, check that the nodes have them."""
        if self._kind and shutil.which("kind") is not None:
            for archive in archives:
                run("kind", "load", "image-archive", archive, "--name", self._kind, within=_LOAD_SECONDS)
            return
        wanted = {tag for archive in archives for tag in tags_of(archive)}
        try:
            self.kubectl.wait("every node has them", lambda: not self._without(wanted), within=_SEEN_SECONDS)
        except ClusterError:
            where, what = ", ".join(self._without(wanted)), ", ".join(sorted(wanted))
            raise UnsupportedError(
                f"{where} lack {what}: load them there, or name a registry that nodes pull from and your container "
                "engine is logged in to, as in `make deploy EVENKEEL_CLUSTER=current EVENKEEL_REGISTRY=ghcr.io/me`"
            ) from None

    def _without(self, images: set[str]) -> list[str]:
        """Return the nodes that lack some of these images."""
        nodes = self.kubectl.items("nodes", WORKERS)
        return [node["metadata"]["name"] for node in nodes if not images <= _images(node)]

    def add_volumes(self, count: int, *, owner: int) -> None:
        """Do nothing: the default class provisions volumes."""

    def kill_node(self, node: str) -> None:
        """Not here."""
        raise UnsupportedError("the provider current does not break nodes; use kind or netns")

    start_node = partition_node = heal_node = kill_node
    cordon_node = uncordon_node = drain_node = kill_node

    def kill_api_server(self) -> None:
        """Not here."""
        raise UnsupportedError("the provider current does not stop the API server; use netns")

    start_api_server = kill_api_server


def _images(node: dict[str, Any]) -> set[str]:
    return {name for image in node["status"].get("images", ()) for name in image["names"] or ()}

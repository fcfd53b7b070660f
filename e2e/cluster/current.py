"""The provider `current`: whatever cluster the user's kubectl talks to. Nothing of it is made, removed or broken."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterError, UnavailableError, UnsupportedError
from e2e.cluster.images import tags_of
from e2e.cluster.kubectl import WORKERS, Kubectl
from e2e.cluster.process import run

__all__ = ["CurrentCluster"]

# A kubelet looks at its images every 30 s.
_SEEN_SECONDS = 40.0
_LOAD_SECONDS = 600.0
_KIND = "kind-"
"""What contexts begin with that kind has written; its clusters' names follow."""
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


class CurrentCluster:
    """A cluster that is somebody else's."""

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
        """The cluster's default."""
        for found in self.kubectl.items("storageclasses"):
            if found["metadata"].get("annotations", {}).get(_DEFAULT) == "true":
                return str(found["metadata"]["name"])
        raise UnsupportedError(f"the cluster has no default StorageClass: annotate one with {_DEFAULT}=true")

    def load_images(self, *archives: Path) -> None:
        """Load them where it is kind's; else see that they are there: how to get them there is not ours to know."""
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
        """The nodes that do not list all of these images."""
        nodes = self.kubectl.items("nodes", WORKERS)
        return [node["metadata"]["name"] for node in nodes if not images <= _images(node)]

    def add_volumes(self, count: int, *, owner: int) -> None:
        """Nothing to do: the default class is taken to make volumes."""

    def kill_node(self, node: str) -> None:
        """Not here."""
        raise UnsupportedError("nodes of somebody else's cluster are not ours to break; kind's and netns' are")

    start_node = partition_node = heal_node = kill_node
    cordon_node = uncordon_node = drain_node = kill_node

    def kill_api_server(self) -> None:
        """Not here."""
        raise UnsupportedError("the API server of somebody else's cluster is not ours to break; netns' is")

    start_api_server = kill_api_server


def _images(node: dict[str, Any]) -> set[str]:
    return {name for image in node["status"].get("images", ()) for name in image["names"] or ()}

"""The chart, installed by Helm on a cluster with images that were built here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from e2e.cluster.binaries import ROOT, find
from e2e.cluster.images import export, program_archive, program_image
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.process import run
from e2e.cluster.provider import Cluster

__all__ = ["STORE_IMAGE", "VALUES", "Release", "load_images"]

CHART = ROOT / "charts" / "evenkeel"
_VERSION = version("evenkeel-operator")
OPERATOR_IMAGE = f"localhost/evenkeel-operator:{_VERSION}"
STORE_IMAGE = f"localhost/evenkeel-store:{_VERSION}"
_ETCD_REPOSITORY, _, _ETCD_TAG = program_image("etcd").rpartition(":")

VALUES: dict[str, Any] = {
    "image": {"tag": _VERSION, "pullPolicy": "Never"},
    "storeImage": {"tag": _VERSION, "pullPolicy": "Never"},
    # A fourth store shares a node: there are three.
    "stores": {"apart": False, "leaseSeconds": 5},
    "operator": {"leaseSeconds": 5},
    "etcd": {
        "image": {"repository": _ETCD_REPOSITORY, "tag": _ETCD_TAG, "pullPolicy": "Never"},
        "storage": {"size": "1Gi"},
    },
}
"""As users have it, but for images and shorter leases."""


def load_images(cluster: Cluster) -> None:
    """Give every node what the chart runs; `make images` has built it."""
    cluster.load_images(program_archive("etcd"), export(OPERATOR_IMAGE), export(STORE_IMAGE))


class Release:
    """One installation of the chart."""

    def __init__(self, kubectl: Kubectl, *, name: str = "evenkeel", namespace: str = "evenkeel") -> None:
        self.kubectl = kubectl
        self.name = name
        self.namespace = namespace

    def helm(self, *arguments: str | Path, stdin: str | None = None, within: float = 60.0) -> str:
        """Run Helm in the release's namespace."""
        config: Sequence[str | Path] = ()
        if self.kubectl.kubeconfig is not None:
            config = ("--kubeconfig", self.kubectl.kubeconfig)
        return run(find("helm"), *config, "--namespace", self.namespace, *arguments, stdin=stdin, within=within)

    def install(self, values: dict[str, Any] | None = None, *, within: int = 180) -> None:
        """Install or upgrade, and wait until everything is Ready."""
        options = ("--create-namespace", "--values=-", "--wait", f"--timeout={within}s")
        written = msgspec.json.encode(values if values is not None else VALUES).decode()
        self.helm("upgrade", "--install", self.name, CHART, *options, stdin=written, within=within + 30)

    def test(self) -> str:
        """What `helm test` says."""
        return self.helm("test", self.name, "--timeout=60s", within=90)

    def uninstall(self) -> None:
        """Take it away; an error where Tables are left."""
        self.helm("uninstall", self.name, "--wait", "--timeout=90s", within=120)

    def leader(self) -> str:
        """The operator's pod that leads."""
        lease = self.kubectl.get(f"lease/{self.name}", f"--namespace={self.namespace}")
        holder: str = lease["spec"].get("holderIdentity") or ""
        return holder.rpartition("-")[0]

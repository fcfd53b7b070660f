"""Installs the chart by Helm, with locally built images."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from e2e.cluster.binaries import ROOT, find
from e2e.cluster.images import built, export, program_archive, program_image
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.processes import run
from e2e.cluster.provider import Cluster
from e2e.shop import Shop

__all__ = ["CHART", "Install", "Release", "image_values", "load_images", "merged", "values"]

CHART = ROOT / "charts" / "evenkeel"


def values() -> dict[str, Any]:
    """Return the default values, except for images and shorter leases."""
    images = {name: image_values(built(name)) for name in ("operator", "store")}
    return {
        "image": images["operator"],
        "storeImage": images["store"],
        # With three nodes, a fourth store shares one.
        "stores": {"apart": False, "leaseSeconds": 5},
        "operator": {"leaseSeconds": 5},
        "etcd": {"image": image_values(program_image("etcd")), "storage": {"size": "1Gi"}},
    }


def image_values(tag: str, *, pull: str = "Never") -> dict[str, str]:
    """Return the chart's values for an image."""
    repository, _, version = tag.rpartition(":")
    return {"repository": repository, "tag": version, "pullPolicy": pull}


def merged(first: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """Merge values, as Helm does."""
    found = dict(first)
    for other in others:
        for name, value in other.items():
            both = isinstance(value, dict) and isinstance(found.get(name), dict)
            found[name] = merged(found[name], value) if both else value
    return found


def load_images(cluster: Cluster) -> None:
    """Load the chart's images, built by `make images`, onto every node."""
    cluster.load_images(program_archive("etcd"), export(built("operator")), export(built("store")))


class Release:
    """One installation of a chart."""

    def __init__(
        self, kubectl: Kubectl, *, name: str = "evenkeel", namespace: str = "evenkeel", chart: Path = CHART
    ) -> None:
        self.kubectl = kubectl
        self.name = name
        self.namespace = namespace
        self.chart = chart

    def helm(self, *arguments: str | Path, stdin: str | None = None, within: float = 60.0) -> str:
        """Run Helm in the release's namespace."""
        config: Sequence[str | Path] = ()
        if self.kubectl.kubeconfig is not None:
            config = ("--kubeconfig", self.kubectl.kubeconfig)
        return run(find("helm"), *config, "--namespace", self.namespace, *arguments, stdin=stdin, within=within)

    def install(self, wanted: dict[str, Any] | None = None, *, within: int = 300) -> None:
        """Install or upgrade, and wait until everything is Ready."""
        options = ("--create-namespace", "--values=-", "--wait", f"--timeout={within}s")
        written = msgspec.json.encode(wanted if wanted is not None else values()).decode()
        self.helm("upgrade", "--install", self.name, self.chart, *options, stdin=written, within=within + 30)

    def test(self) -> str:
        """Return the output of `helm test`."""
        return self.helm("test", self.name, "--timeout=120s", within=150)

    def uninstall(self) -> None:
        """Uninstall the release; ClusterError while Tables exist."""
        self.helm("uninstall", self.name, "--wait", "--timeout=90s", within=120)

    def stay(self) -> None:
        """Restore the release after a refused uninstall; Helm would not upgrade it otherwise."""
        *_, newest = msgspec.json.decode(self.helm("history", self.name, "--output=json"))
        self.helm("rollback", self.name, str(newest["revision"]), "--wait", "--timeout=120s", within=150)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all operators until the end of the block."""
        where, name = f"--namespace={self.namespace}", f"deployment/{self.name}"
        replicas = self.kubectl.get(name, where)["spec"]["replicas"]
        selector = "--selector=app.kubernetes.io/name=evenkeel-operator"
        self.kubectl("scale", name, "--replicas=0", where)
        try:
            self.kubectl("wait", "--for=delete", "pod", selector, where, "--timeout=90s", within=100)
            yield
        finally:
            self.kubectl("scale", name, f"--replicas={replicas}", where)
            self.kubectl("rollout", "status", name, where, "--timeout=120s", within=130)

    def leader(self) -> str:
        """Return the leading pod of the operator."""
        lease = self.kubectl.get(f"lease/{self.name}", f"--namespace={self.namespace}")
        holder: str = lease["spec"].get("holderIdentity") or ""
        return holder.rpartition("-")[0]


class Install(Protocol):
    """Installs or upgrades the chart with additional values."""

    def __call__(self, *changes: dict[str, Any], chart: Path = CHART) -> tuple[Release, Shop]:
        """Return the current installation."""

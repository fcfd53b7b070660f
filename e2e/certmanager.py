"""cert-manager for tests: its CRDs and controllers, built from its Go module, in one pod."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from e2e.cluster.binaries import ROOT
from e2e.cluster.images import program_archive, program_image
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.processes import run
from e2e.cluster.provider import Cluster

__all__ = ["cert_manager", "renew"]

_NAME = "cert-manager"
_MODULE = ROOT / "binaries" / _NAME


@contextlib.contextmanager
def cert_manager(cluster: Cluster) -> Iterator[None]:
    """Run cert-manager until the end of the block."""
    kubectl, crds = cluster.kubectl, f"--filename={_crds()}"
    cluster.load_images(program_archive(_NAME))
    kubectl("apply", "--server-side", crds)
    kubectl("create", "namespace", _NAME)
    try:
        kubectl("wait", "--for=condition=Established", crds)
        kubectl.apply(*_objects(), namespace=_NAME)
        kubectl("rollout", "status", f"deployment/{_NAME}", f"--namespace={_NAME}", "--timeout=90s", within=100)
        yield
    finally:
        kubectl("delete", f"clusterrolebinding/{_NAME}", "--ignore-not-found")
        kubectl("delete", "namespace", _NAME, "--timeout=60s", within=70)
        kubectl("delete", crds, "--timeout=60s", within=70)


def renew(kubectl: Kubectl, certificate: str, *, namespace: str) -> None:
    """Renew a certificate, as cert-manager's command line does, and wait for it."""
    where = f"--namespace={namespace}"
    before = _revision(kubectl, certificate, where)
    wanted = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "asked for by a test"}
    patch = msgspec.json.encode({"status": {"conditions": [wanted]}}).decode()
    kubectl("patch", f"certificate/{certificate}", "--subresource=status", "--type=merge", f"--patch={patch}", where)
    kubectl.wait(f"{certificate} is renewed", lambda: _revision(kubectl, certificate, where) > before, within=60)


def _revision(kubectl: Kubectl, certificate: str, where: str) -> int:
    return int(kubectl.get(f"certificate/{certificate}", where).get("status", {}).get("revision", 0))


def _crds() -> Path:
    """Return the CRDs from the Go module that the program is built from."""
    run("go", "mod", "download", "github.com/cert-manager/cert-manager", cwd=_MODULE, within=600)
    folder = run("go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager", cwd=_MODULE)
    return Path(folder.strip()) / "deploy" / "crds"


def _objects() -> list[dict[str, Any]]:
    """Grant cert-manager all permissions; its own chart grants fewer."""
    api, labels = "rbac.authorization.k8s.io", {"app": _NAME}
    role = {"apiGroup": api, "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": _NAME}
    container = {"name": _NAME, "image": program_image(_NAME), "imagePullPolicy": "Never"}
    return [
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _NAME},
            "roleRef": role,
            "subjects": [subject],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": _NAME},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        },
    ]

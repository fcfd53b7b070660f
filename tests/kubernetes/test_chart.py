"""The rendered chart on a real API server."""

from __future__ import annotations

import pytest

from e2e.cluster.binaries import lacking
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.layers import leave_out
from e2e.release import Release
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.kubeconfig import load_configuration
from evenkeel_operator.process.uninstall_guard import remaining
from tests.kubernetes.world import store_cluster


@pytest.mark.parametrize("scope", ["cluster", "namespace"])
def test_it_installs(kubectl: Kubectl, namespace: str, scope: str) -> None:
    """The API server accepts every object in a server-side dry run."""
    if lacking("helm"):
        leave_out("not built yet: helm (make binaries ONLY=cluster)")
    release = Release(kubectl, namespace=namespace)
    rendered = release.helm(
        "template", release.name, "charts/evenkeel", "--kube-version=1.34.0", "--no-hooks", f"--set=rbac.scope={scope}"
    )
    assert "error" not in kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", f"--namespace={namespace}", "--filename=-",
        stdin=rendered,
    )  # fmt: skip


async def test_uninstalling_waits_for_store_clusters(kubectl: Kubectl, namespace: str) -> None:
    """An uninstall is refused and names the StoreClusters in served namespaces, but not those in others."""
    kubectl.apply(store_cluster(), namespace=namespace)
    kube = Kube(await load_configuration(kubectl.kubeconfig))
    try:
        assert await remaining(kube, [namespace]) == [f"StoreCluster {namespace}/main"]
        assert f"StoreCluster {namespace}/main" in await remaining(kube, [])
        assert await remaining(kube, ["default"]) == []
    finally:
        await kube.close()

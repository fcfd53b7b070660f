"""`python -m e2e.deploy`: deploys locally built images and an example Table to a cluster.

`EVENKEEL_CLUSTER` selects the provider. `netns` and `kind` use a cluster `dev`, and create it if it does not exist;
`current` uses the current context of kubectl. Its nodes pull the images from `EVENKEEL_REGISTRY`, to which they are
pushed, or have them already, as in a cluster of kind. With fewer than three nodes, `values-dev.yaml` is used.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import yaml

from e2e.cluster import netns
from e2e.cluster.binaries import ROOT, shell_path
from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.current import CurrentCluster
from e2e.cluster.images import built, export
from e2e.cluster.kind import KindCluster
from e2e.cluster.processes import run
from e2e.cluster.provider import Cluster, chosen
from e2e.picture import picture
from e2e.release import CHART, Release, image_values, load_images, merged, values

_NAME = "dev"
_OWNER = 65532
_EXAMPLE = ROOT / "examples" / "orders.yaml"
_REGISTRY = "EVENKEEL_REGISTRY"
_PUSH_SECONDS = 900.0
_SPREAD = 3
"""Number of nodes for anti-affinity of etcd members and stores."""


def main() -> int:
    """Deploy the example; return the exit status, 0 if its table is Ready."""
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {what}", file=sys.stderr, flush=True)

    try:
        provider = chosen()
        cluster = _cluster(provider)
        say(f"a cluster, by {provider}")
        wanted = merged(_sized(cluster), _images(provider, cluster))
        say("images where nodes get them")
        _deploy(cluster, wanted, say)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _print_next_steps(provider, cluster)
    return 0


def _deploy(cluster: Cluster, wanted: dict[str, Any], say: Callable[[str], None]) -> None:
    try:
        Release(cluster.kubectl).install(wanted)
        say("Evenkeel installed by Helm, in namespace evenkeel")
        cluster.kubectl("apply", "--server-side", f"--filename={_EXAMPLE}")
        cluster.kubectl("wait", "--for=condition=Ready", "table/orders", "--timeout=300s", within=310)
        say("the table orders of examples/orders.yaml is Ready")
    except ClusterError:
        print(picture(cluster.kubectl), file=sys.stderr)
        raise


def _cluster(provider: str) -> Cluster:
    if provider == "current":
        current = CurrentCluster()
        # Without a StorageClass neither etcd nor stores get volumes; fail early.
        _ = current.storage_class
        return current
    if provider == "kind":
        kind = KindCluster(_NAME)
        if not kind.kubeconfig.exists():
            kind.up()
        return kind
    return netns.ensure(_NAME, owner=_OWNER, say=lambda what: print(what, file=sys.stderr, flush=True))


def _sized(cluster: Cluster) -> dict[str, Any]:
    """Return the chart's values for this number of nodes."""
    spread: dict[str, Any] = {"etcd": {"storage": {"size": "1Gi"}}}
    if len(cluster.kubectl.workers()) >= _SPREAD:
        return spread
    small: dict[str, Any] = yaml.safe_load((CHART / "values-dev.yaml").read_text())
    return small


def _images(provider: str, cluster: Cluster) -> dict[str, Any]:
    """Load the images onto the nodes; return the chart's values for them."""
    if provider == "netns":
        load_images(cluster)
        ours = values()
        return {"image": ours["image"], "storeImage": ours["storeImage"], "etcd": {"image": ours["etcd"]["image"]}}
    registry, tags = os.environ.get(_REGISTRY, ""), {name: built(name) for name in ("operator", "store")}
    if registry:
        tags = {name: _push(tag, registry) for name, tag in tags.items()}
    else:
        cluster.load_images(*map(export, tags.values()))
    pull = "IfNotPresent" if registry else "Never"
    # etcd's own image is pulled from its registry.
    return {
        "image": image_values(tags["operator"], pull=pull),
        "storeImage": image_values(tags["store"], pull=pull),
    }


def _push(tag: str, registry: str) -> str:
    return run(ROOT / "scripts" / "push-image.sh", tag, registry, within=_PUSH_SECONDS).strip()


def _print_next_steps(provider: str, cluster: Cluster) -> None:
    """Print shell commands for the next steps."""
    kubeconfig = cluster.kubectl.kubeconfig
    known = f'KUBECONFIG="{kubeconfig}" ' if kubeconfig is not None else ""
    print(f'export {known}PATH="{shell_path()}"')
    print("kubectl get storeclusters,tables,pods")
    print("kubectl evenkeel status")
    if provider == "current":
        print(f'kubectl delete --filename="{_EXAMPLE}" --wait=false')
        print("kubectl evenkeel force-delete storecluster/main    # with the data, which is kept for a day otherwise")
        print("helm uninstall evenkeel --namespace=evenkeel    # ends it")
    else:
        print(f"make cluster-down EVENKEEL_CLUSTER={provider}    # ends it")


if __name__ == "__main__":
    sys.exit(main())

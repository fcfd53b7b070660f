"""`python -m e2e.deploy`: from images that were built here to a Table that is Ready, on the cluster of one's choice.

`EVENKEEL_CLUSTER` says whose: `netns` and `kind` have a cluster `dev`, which is made where it is not there; `current`
is wherever kubectl points, if its nodes have the images.
"""

from __future__ import annotations

import sys
import time

from e2e.cluster import netns
from e2e.cluster.binaries import ROOT
from e2e.cluster.current import CurrentCluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.kind import KindCluster
from e2e.cluster.netns import NetnsCluster
from e2e.cluster.provider import Cluster, chosen
from e2e.release import Release, load_images

_NAME = "dev"
_OWNER = 65532
_EXAMPLE = ROOT / "examples" / "orders.yaml"


def main() -> int:
    """The exit code: 0 when the example's table is Ready."""
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {what}", file=sys.stderr, flush=True)

    try:
        cluster = _cluster()
        say(f"a cluster, by {chosen()}")
        load_images(cluster)
        say("images on every node")
        Release(cluster.kubectl).install()
        say("Evenkeel installed by Helm, in namespace evenkeel")
        cluster.kubectl("apply", "--server-side", f"--filename={_EXAMPLE}")
        cluster.kubectl("wait", "--for=condition=Ready", "table/orders", "--timeout=180s", within=190)
        say("the table orders of examples/orders.yaml is Ready")
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    kubeconfig = cluster.kubectl.kubeconfig
    if kubeconfig is not None:
        print(f"export KUBECONFIG={kubeconfig}")
    print("kubectl get storeclusters,tables,pods")
    return 0


def _cluster() -> Cluster:
    if chosen() == "current":
        return CurrentCluster()
    if chosen() == "kind":
        kind = KindCluster(_NAME)
        if not kind.kubeconfig.exists():
            kind.up()
        return kind
    if _NAME in netns.clusters():
        return NetnsCluster.load(_NAME)
    netns.prepare()
    cluster = NetnsCluster.up(_NAME)
    cluster.add_volumes(owner=_OWNER)
    return cluster


if __name__ == "__main__":
    sys.exit(main())

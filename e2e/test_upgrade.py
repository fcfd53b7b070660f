"""A rolling update between two releases during a rebalance, and back; clients write throughout."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.binaries import ROOT
from e2e.cluster.images import built, export
from e2e.cluster.provider import Cluster
from e2e.release import CHART, Install, image_values
from e2e.shop import Shop
from evenkeel.versions import FIRST, SUPPORTED

PREVIOUS_CHART = ROOT / "build" / "previous" / "charts" / "evenkeel"
HOLD = "evenkeel.dev/max-version"
PARTITIONS = 32
ROWS = 5000
FEW = 4
"""With this few partitions left to move, the table is scaled in the other direction."""


@pytest.fixture
def previous(cluster: Cluster) -> dict[str, Any]:
    """Load the previous release's images onto every node; return its chart's values."""
    tags = {name: built(f"previous-{name}") for name in ("operator", "store")}
    cluster.load_images(*(export(tag) for tag in tags.values()))
    return {"image": image_values(tags["operator"]), "storeImage": image_values(tags["store"])}


@pytest.mark.timeout(1500)
def test_a_rolling_update_and_back(install: Install, previous: dict[str, Any]) -> None:
    """Pods are replaced one at a time while replicas move; no row is lost, and the cluster version rises afterwards."""
    _, shop = install(previous, chart=PREVIOUS_CHART)
    # The previous release lacks the field undeleteFor.
    shop.open(stores=4, partitions=PARTITIONS, undeleteFor=None)
    shop.run("annotate", shop.cluster_name, f"{HOLD}={FIRST}")
    shop.start_client()
    shop.wait_for_writes(ROWS, within=180)
    current = {"image": image_values(built("operator")), "storeImage": image_values(built("store"))}
    for images, chart, replicas in ((current, CHART, 4), (previous, PREVIOUS_CHART, 3), (current, CHART, 4)):
        before = shop.uids()

        def upgrade(images: dict[str, Any] = images, chart: Path = chart) -> None:
            if images is previous:
                clear_conditions(shop)
            install(images, chart=chart)

        upgrade_while_moving(shop, upgrade, replicas=replicas)
        shop.wait_for_others(before, within=300)
        verify(shop, store=images["storeImage"])
    status = shop.status(shop.cluster_name)
    assert (status["version"], status["supportedVersion"]) == (FIRST, SUPPORTED.newest)
    shop.run("annotate", shop.cluster_name, f"{HOLD}-")
    shop.kubectl.wait(
        "the cluster version has risen", lambda: shop.status(shop.cluster_name)["version"] == SUPPORTED.newest
    )
    shop.run("patch", shop.table_name, "--type=merge", '--patch={"spec":{"replicas":3,"undeleteFor":"0s"}}')
    verify(shop, store=current["storeImage"])


def upgrade_while_moving(shop: Shop, upgrade: Callable[[], None], *, replicas: int) -> None:
    """Upgrade, and keep replicas moving until the first store pod is replaced.

    Helm waits for the operator before any store is replaced, so one rebalance might end before that. The table is
    scaled in the other direction in time. At the end it has the desired replicas, and moves are no longer limited.
    """
    before, wanted = shop.uids(), replicas
    shop.limit_moves(1)
    shop.scale(shop.table_name, wanted)
    shop.kubectl.wait("replicas move", lambda: shop.seen(shop.table_name) and shop.moving() > 0, within=60)
    with ThreadPoolExecutor(max_workers=1) as pool:
        upgrading = pool.submit(upgrade)
        deadline = time.monotonic() + 400
        while not shop.away(before):
            assert time.monotonic() < deadline, "no store's pod was replaced"
            if upgrading.done():
                upgrading.result()
            if shop.seen(shop.table_name) and shop.moving() <= FEW:
                wanted = 7 - wanted  # from 3 to 4 and back
                shop.scale(shop.table_name, wanted)
            time.sleep(0.2)
        moving = shop.moving()
        upgrading.result()
    assert moving > 0, "no partition was moving when the first store was replaced"
    shop.limit_moves(16)
    shop.scale(shop.table_name, replicas)


def clear_conditions(shop: Shop) -> None:
    """Downgrade as in docs/upgrade.md: stop the operator, then clear what the previous release cannot read."""
    where = "--namespace=evenkeel"
    shop.kubectl("scale", "deployment/evenkeel", "--replicas=0", where)
    shop.kubectl(
        "wait", "--for=delete", "pod", "--selector=app.kubernetes.io/name=evenkeel-operator", where, "--timeout=90s"
    )
    for name in shop.run("get", "storeclusters,tables,partitionassignments,rebalanceplans", "--output=name").split():
        patch = '--patch={"status":{"conditions":null}}'
        shop.run("patch", name, "--subresource=status", "--type=merge", patch)


def verify(shop: Shop, *, store: dict[str, str]) -> None:
    """Check that stores of this image are ready, and every acknowledged row exists."""
    shop.settle(within=300)
    wanted = f"{store['repository']}:{store['tag']}"
    images = {container["image"] for pod in shop.pods().values() for container in pod["spec"]["containers"]}
    assert images == {wanted}
    shop.wait_for_writes()
    shop.check()

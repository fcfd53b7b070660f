"""Volumes on real nodes: manual changes of a StatefulSet or a Table lose no row."""

from __future__ import annotations

import pytest

from e2e.release import Release
from e2e.shop import Shop


@pytest.mark.parametrize("how", ["scale statefulset/main --replicas=0", "delete statefulset/main --wait=false"])
def test_a_stateful_set_changed_by_hand_loses_nothing(evenkeel: Release, shop: Shop, how: str) -> None:
    """A deleted StatefulSet is restored with its volumes and every row, even if the operator was down."""
    shop.open()
    shop.start_client()
    shop.wait_for_writes()
    volumes, before = shop.volumes(), shop.uids()
    with evenkeel.stopped():
        shop.run(*how.split())
        shop.kubectl.wait("all stores' pods are gone", lambda: not shop.pods(), within=120)

    def restored() -> bool:
        sets = shop.kubectl.items("statefulsets", f"--namespace={shop.namespace}")
        return [(each["spec"]["replicas"], each["status"].get("readyReplicas")) for each in sets] == [(3, 3)]

    shop.kubectl.wait("the StatefulSet has its three pods again", restored, within=120)
    assert not set(before.values()) & set(shop.uids().values()), "the same pods"
    shop.settle()
    shop.wait_for_writes()
    shop.check()
    assert shop.volumes() == volumes


def test_a_deleted_table_comes_back(shop: Shop) -> None:
    """A deleted table, listed in the StoreCluster's status, is undeleted with every acknowledged row."""
    shop.open(undeleteFor="1h")
    shop.start_client()
    shop.wait_for_writes()
    shop.run("delete", shop.table_name, "--timeout=60s")
    shop.kubectl.wait("the status lists the table", lambda: shop.status(shop.cluster_name).get("dropped"), within=30)
    [dropped] = shop.status(shop.cluster_name)["dropped"]
    asked = f"evenkeel.dev/undelete={dropped['table']}.{dropped['uid']}"
    shop.run("annotate", shop.cluster_name, asked)
    shop.kubectl.wait("the table is there again", lambda: shop.table_name in _tables(shop), within=60)
    shop.settle()
    shop.wait_for_writes()
    shop.check()


def _tables(shop: Shop) -> list[str]:
    return [name.replace(".evenkeel.dev", "") for name in shop.run("get", "tables", "--output=name").split()]

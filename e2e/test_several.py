"""Several of a kind at once: tables that share stores, StoreClusters side by side, stores lost together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from e2e.cluster.provider import Cluster
from e2e.release import Release
from e2e.shop import Found, Shop

_OWNER = 65532
_NOT_READY_SECONDS = 10.0
"""So soon after its stores are lost a table must not be Ready any more."""
_KUBELET_SECONDS = 4.0
"""A pod deleted by force is gone from the API server at once, but its kubelet lets each container run on for up to two
seconds (`minimumGracePeriodInSeconds`): the store first, then its sidecar. Only then is the store lost."""
_FORCED = ("--grace-period=0", "--force", "--wait=false")


def _checked(*shops: Shop) -> list[Found]:
    """Every shop is settled, its client goes on writing, and no acknowledged row is missing."""
    for shop in shops:
        shop.settle()
        shop.wait_for_writes()
    return [shop.check() for shop in shops]


def _condition(shop: Shop, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = shop.status().get("conditions", [])
    return next((each for each in found if each["type"] == name), {})


def _is(shop: Shop, name: str, status: str) -> bool:
    return bool(_condition(shop, name).get("status") == status)


def test_several_tables_and_store_clusters(cluster: Cluster, evenkeel: Release, shop: Shop) -> None:
    """Two tables on one StoreCluster and one on another are scaled at the same time; dropping one leaves the others.

    Both StoreClusters are in one namespace and have stores on the same nodes.
    """
    cluster.add_volumes(1, owner=_OWNER)
    returns = Shop(evenkeel.kubectl, shop.namespace, table="returns")
    ledger = Shop(evenkeel.kubectl, shop.namespace, cluster="second", table="ledger")
    shops = (shop, returns, ledger)
    with contextlib.ExitStack() as stack:
        stack.callback(ledger.close)
        stack.callback(returns.close_table)
        for each in shops:
            each.open(replicas=1)
            each.start_client()
        for each in shops:
            each.scale(each.table_name, 3)
        found = _checked(*shops)
        assert [each.failed for each in found] == [0, 0, 0], found
        assert [sorted(each.holders()) for each in shops] == [
            ["main-0", "main-1", "main-2"],
            ["main-0", "main-1", "main-2"],
            ["second-0", "second-1", "second-2"],
        ]
        returns.close_table()
        _checked(shop, ledger)


@contextlib.contextmanager
def _kept_away(cluster: Cluster, shop: Shop, *stores: str) -> Iterator[None]:
    """End the stores' pods at once, and let none come back: their volumes are on nodes that take no pod."""
    nodes = {shop.node_of(store) for store in stores}
    for node in nodes:
        cluster.cordon_node(node)
    try:
        shop.run("delete", *[f"pod/{store}" for store in stores], *_FORCED)
        yield
    finally:
        for node in nodes:
            cluster.uncordon_node(node)


def test_two_stores_lost_at_once(cluster: Cluster, shop: Shop) -> None:
    """The table says that it has no quorum while two of three stores are away, and is Ready with every row after."""
    shop.open()
    node = shop.node_of("main-2")
    shop.start_client(node=node)
    shop.kubectl.wait("the table is Ready", lambda: _is(shop, "Ready", "True"))
    with _kept_away(cluster, shop, "main-0", "main-1"):
        lost = time.monotonic()
        shop.kubectl.wait(
            "the table is not Ready", lambda: _condition(shop, "Ready").get("status") == "False", within=60
        )
        took = time.monotonic() - lost
        assert took <= _NOT_READY_SECONDS + _KUBELET_SECONDS, f"the table was Ready for {took:.1f} s"
        shop.kubectl.wait("every partition is leaderless", lambda: shop.status()["leaderless"] == 8, within=30)
        assert _condition(shop, "Ready")["reason"] == "NoQuorum"
    _checked(shop)

"""Several objects at once: tables that share stores, two StoreClusters, stores lost together."""

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
"""Time after the loss of its stores within which a table must become not Ready."""
_KUBELET_SECONDS = 4.0
"""The API server removes a force-deleted pod at once, but the kubelet lets each container run for up to two
seconds (`minimumGracePeriodInSeconds`): the store first, then its sidecar. Only then is the store lost."""
_FORCED = ("--grace-period=0", "--force", "--wait=false")


def _checked(*shops: Shop) -> list[Found]:
    """Check that every shop is ready, its client keeps writing, and no acknowledged row is missing."""
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
    """Two tables on one StoreCluster and one on another are scaled at the same time; dropping one keeps the others.

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
    """Kill the stores' pods at once, and keep them away: their volumes are on cordoned nodes."""
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
    """The table reports NoQuorum while two of three stores are down; afterwards it is Ready with every row."""
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

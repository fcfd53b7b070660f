"""A smoke test: install, a table, a client, scaling, and removal."""

from __future__ import annotations

import pytest

from e2e.cluster.cluster_errors import ClusterError
from e2e.release import Release
from e2e.shop import Shop


def test_smoke(evenkeel: Release, shop: Shop) -> None:
    """A client writes while a table is scaled from one replica to three; deletion leaves nothing behind."""
    assert "Succeeded" in evenkeel.test()
    shop.open(replicas=1)
    shop.start_client()
    shop.scale("table/orders", 3)
    shop.settle()
    shop.wait_for_writes()
    found = shop.check()
    assert found.failed == 0, found.errors
    shop.wait_for_holders("main-0", "main-1", "main-2")
    with pytest.raises(ClusterError):
        evenkeel.uninstall()
    evenkeel.stay()
    shop.close()
    # Kubernetes garbage-collects owned objects, and volume claims once no pod mounts them.
    shop.kubectl.wait("nothing is left", lambda: not shop.left(), within=60)

"""The shortest way through everything: install, a table, a client, another scale, and nothing left at the end."""

from __future__ import annotations

import pytest

from e2e.cluster.errors import ClusterError
from e2e.release import Release
from e2e.shop import Shop


def test_smoke(evenkeel: Release, shop: Shop) -> None:
    """A table is Ready, a client pod writes while it goes from one copy to three, and deleting leaves nothing."""
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
    # Kubernetes itself takes off what is owned, and volumes' claims once nobody mounts them.
    shop.kubectl.wait("nothing is left", lambda: not shop.left(), within=60)

"""All members of etcd are down."""

from __future__ import annotations

from e2e.release import Release
from e2e.shop import Shop

_ETCD = "evenkeel-etcd"


def _scale(evenkeel: Release, members: int) -> None:
    where = f"--namespace={evenkeel.namespace}"
    evenkeel.kubectl("scale", f"statefulset/{_ETCD}", f"--replicas={members}", where)
    selector = "app.kubernetes.io/name=evenkeel-etcd"
    evenkeel.kubectl.wait(
        f"etcd has {members} pods",
        lambda: len(evenkeel.kubectl.pods(selector, namespace=evenkeel.namespace)) == members,
        within=120,
    )


def _members(evenkeel: Release) -> int:
    found = evenkeel.kubectl.get(f"statefulset/{_ETCD}", f"--namespace={evenkeel.namespace}")
    return int(found["spec"]["replicas"])


def test_all_members_down_and_back(evenkeel: Release, shop: Shop) -> None:
    """Writes continue without etcd; changes continue when it is back."""
    shop.open(replicas=1)
    shop.start_client()
    members = _members(evenkeel)
    _scale(evenkeel, 0)
    try:
        shop.wait_for_writes(500)
    finally:
        _scale(evenkeel, members)
    shop.scale(shop.table_name, 3)
    shop.settle(within=300)
    shop.wait_for_writes()
    assert shop.check().missing == []

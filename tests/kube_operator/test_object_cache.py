"""The object cache: events in any order, the newest version wins."""

from __future__ import annotations

from typing import Any

from evenkeel.kube.object_kinds import NODE, POD, TABLE, Kind, Object
from evenkeel_operator.kinds import OWNER_FIELDS
from evenkeel_operator.kube.object_cache import Cache


def subject(name: str, version: int, *, uid: str = "", namespace: str = "shop", **fields: Any) -> Object:
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"storeCluster": "main"}, **fields}


def test_older_versions_are_ignored() -> None:
    """A late watch event after the response to a write changes nothing."""
    seen: list[str] = []

    def listen(kind: Kind, before: Object | None, after: Object | None) -> None:
        seen.append(after["metadata"]["resourceVersion"] if after else "gone")

    cache = Cache(OWNER_FIELDS, listen)
    for version in (5, 3, 5, 10, 9):
        cache.put(TABLE, subject("a", version))
    assert seen == ["5", "10"]


def test_a_deleted_object_does_not_come_back() -> None:
    """An event from before the deletion is ignored; another object of the same name is not."""
    cache = Cache(OWNER_FIELDS)
    cache.put(TABLE, subject("a", 1))
    cache.remove(TABLE, subject("a", 3))
    cache.put(TABLE, subject("a", 2))
    assert cache.get(TABLE, "shop", "a") is None
    cache.put(TABLE, subject("a", 4, uid="other"))
    assert cache.get(TABLE, "shop", "a") is not None
    cache.remove(TABLE, subject("a", 3))
    assert cache.get(TABLE, "shop", "a") is not None


def test_a_listing_removes_deleted_objects() -> None:
    """Objects that are older than the listing and not in it are gone; newer ones stay."""
    cache = Cache(OWNER_FIELDS)
    for name, version in (("old", 1), ("kept", 2), ("new", 9)):
        cache.put(TABLE, subject(name, version))
    cache.put(TABLE, subject("elsewhere", 1, namespace="other"))
    cache.relist(TABLE, [subject("kept", 2), subject("missed", 4)], version=5, namespace="shop")
    assert {found["metadata"]["name"] for found in cache.all(TABLE)} == {"kept", "missed", "new", "elsewhere"}


def test_tables_are_found_by_their_store_cluster() -> None:
    """The index follows a table that was recreated for another StoreCluster."""
    cache = Cache(OWNER_FIELDS)
    for name in ("b", "a"):
        cache.put(TABLE, subject(name, 1))
    assert [found["metadata"]["name"] for found in cache.owned(TABLE, "shop", "main")] == ["a", "b"]
    cache.put(TABLE, subject("a", 2, uid="other") | {"spec": {"storeCluster": "second"}})
    assert [found["metadata"]["name"] for found in cache.owned(TABLE, "shop", "main")] == ["b"]
    assert [found["metadata"]["name"] for found in cache.owned(TABLE, "shop", "second")] == ["a"]
    cache.remove(TABLE, subject("b", 3))
    assert list(cache.owned(TABLE, "shop", "main")) == []


def test_unused_fields_are_dropped() -> None:
    """Managed fields, and most fields of pods and nodes, are not kept in memory."""
    cache = Cache(OWNER_FIELDS)
    pod = subject("p", 1, status={"phase": "Running", "podIPs": ["x"]}) | {"spec": {"nodeName": "n", "containers": []}}
    pod["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    cache.put(POD, pod)
    kept = cache.get(POD, "shop", "p")
    assert kept is not None
    assert "managedFields" not in kept["metadata"]
    assert (kept["spec"], kept["status"]) == ({"nodeName": "n"}, {"phase": "Running"})
    cache.put(NODE, subject("n", 1, namespace="", status={"images": ["many"]}) | {"spec": {"podCIDR": "x"}})
    node = cache.get(NODE, "", "n")
    assert node is not None
    assert (node["spec"], node["status"]) == ({"unschedulable": False}, {})

"""Objects as the watches last showed them.

Watches, listings and the answers to our own writes all come in here, in whatever order; an object only ever becomes
newer. What nobody here reads is dropped on the way in, because a cluster has thousands of objects.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

from evenkeel.kube.object_kinds import NODE, PARTITION_ASSIGNMENT, POD, REBALANCE_PLAN, TABLE, Kind, Object

__all__ = ["Cache", "Key", "key_of", "version_of"]

Key = tuple[str, str]
"""Namespace and name; no namespace for what is in none."""
Listener = Callable[[Kind, Object | None, Object | None], None]

_GONE_REMEMBERED: Final = 10_000
_OWNERS: Final = {TABLE: "storeCluster", PARTITION_ASSIGNMENT: "table", REBALANCE_PLAN: "table"}
"""The field of a spec, which never changes, that names what the object belongs to."""
_POD_FIELDS: Final = ("phase", "conditions", "containerStatuses", "initContainerStatuses", "podIP")


def key_of(subject: Object) -> Key:
    """Which object it is among those of its kind."""
    return subject["metadata"].get("namespace", ""), subject["metadata"]["name"]


def version_of(subject: Object) -> int:
    """How new it is: resource versions grow, and since Kubernetes 1.35 that is promised."""
    text = str(subject["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


class Cache:
    """All objects of the kinds that are watched."""

    def __init__(self, listener: Listener = lambda kind, before, after: None) -> None:
        """`listener` is told of every change: the object before and after, None where there is none."""
        self._objects: dict[Kind, dict[str, dict[str, Object]]] = {}
        self._owned: dict[tuple[Kind, str, str], set[str]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._listener = listener

    # Reading

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, or None."""
        return self._objects.get(kind, {}).get(namespace, {}).get(name)

    def all(self, kind: Kind, namespace: str | None = None) -> Iterator[Object]:
        """All objects of a kind, or those of one namespace."""
        there = self._objects.get(kind, {})
        places = list(there) if namespace is None else [namespace]
        for place in places:
            yield from list(there.get(place, {}).values())

    def owned(self, kind: Kind, namespace: str, owner: str) -> Iterator[Object]:
        """The tables of a StoreCluster, or what belongs to a table, by name."""
        there = self._objects.get(kind, {}).get(namespace, {})
        for name in sorted(self._owned.get((kind, namespace, owner), ())):
            yield there[name]

    def count(self, kind: Kind) -> int:
        """How many there are."""
        return sum(map(len, self._objects.get(kind, {}).values()))

    # Writing

    def put(self, kind: Kind, subject: Object) -> None:
        """Take in an object, unless a newer one, or its end, was seen already."""
        namespace, name = key_of(subject)
        before = self.get(kind, namespace, name)
        if subject["metadata"].get("uid", "") in self._gone:
            return
        if before is not None and version_of(before) >= version_of(subject):
            return
        after = self._objects.setdefault(kind, {}).setdefault(namespace, {})[name] = _trimmed(kind, subject)
        if before is not None and (owner := _owner(kind, before)) is not None:
            self._owned[kind, namespace, owner].discard(name)
        if (owner := _owner(kind, after)) is not None:
            self._owned.setdefault((kind, namespace, owner), set()).add(name)
        self._listener(kind, before, after)

    def remove(self, kind: Kind, subject: Object) -> None:
        """An object is gone."""
        namespace, name = key_of(subject)
        uid = subject["metadata"].get("uid", "")
        self._forget_later(uid)
        before = self.get(kind, namespace, name)
        if before is None or before["metadata"].get("uid", "") != uid:
            return
        del self._objects[kind][namespace][name]
        if (owner := _owner(kind, before)) is not None:
            self._owned[kind, namespace, owner].discard(name)
        self._listener(kind, before, None)

    def relist(self, kind: Kind, subjects: list[Object], *, version: int, namespace: str = "") -> None:
        """Take in a whole listing of a namespace, or of all: what is older than it and not in it is gone."""
        for subject in subjects:
            self.put(kind, subject)
        listed = {key_of(subject) for subject in subjects}
        for subject in list(self.all(kind, namespace or None)):
            if key_of(subject) not in listed and version_of(subject) <= version:
                self.remove(kind, subject)

    def _forget_later(self, uid: str) -> None:
        if uid:
            self._gone[uid] = None
            while len(self._gone) > _GONE_REMEMBERED:
                self._gone.popitem(last=False)


def _owner(kind: Kind, subject: Object) -> str | None:
    field = _OWNERS.get(kind)
    return None if field is None else str(subject.get("spec", {}).get(field, ""))


def _trimmed(kind: Kind, subject: Object) -> Object:
    metadata = {name: value for name, value in subject["metadata"].items() if name != "managedFields"}
    kept: dict[str, Any] = {**subject, "metadata": metadata}
    if kind == NODE:
        kept["spec"] = {"unschedulable": subject.get("spec", {}).get("unschedulable", False)}
        kept["status"] = {}
    elif kind == POD:
        status = subject.get("status", {})
        kept["spec"] = {"nodeName": subject.get("spec", {}).get("nodeName", "")}
        kept["status"] = {name: status[name] for name in _POD_FIELDS if name in status}
    return kept

"""Cache of the watched objects.

Watch events, listings and the responses to the operator's own writes arrive in any order; the newest version of an
object wins. Fields that the operator does not read are dropped, because a cluster has thousands of objects.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from evenkeel.kube.object_kinds import NODE, POD, Kind, Object

__all__ = ["Cache", "Key", "key_of", "version_of"]

Key = tuple[str, str]
"""Namespace and name; the namespace of a cluster-scoped object is empty."""
Listener = Callable[[Kind, Object | None, Object | None], None]

_GONE_REMEMBERED: Final = 10_000
_POD_FIELDS: Final = ("phase", "conditions", "containerStatuses", "initContainerStatuses", "podIP")


def key_of(subject: Object) -> Key:
    """Return the namespace and name of an object."""
    return subject["metadata"].get("namespace", ""), subject["metadata"]["name"]


def version_of(subject: Object) -> int:
    """Return the resource version as a number; versions increase, which Kubernetes guarantees since 1.35."""
    text = str(subject["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


class Cache:
    """All objects of the watched kinds."""

    def __init__(self, owner_fields: Mapping[Kind, str], listener: Listener = lambda kind, before, after: None) -> None:
        """Create an empty cache.

        `owner_fields` names, by kind, the immutable field of the spec that has the owner's name. `listener` is called
        on every change with the object before and after; None if it does not exist.
        """
        self._owner_fields = owner_fields
        self._objects: dict[Kind, dict[str, dict[str, Object]]] = {}
        self._owned: dict[tuple[Kind, str, str], set[str]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._listener = listener

    # Reading

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return one object, or None."""
        return self._objects.get(kind, {}).get(namespace, {}).get(name)

    def all(self, kind: Kind, namespace: str | None = None) -> Iterator[Object]:
        """Return all objects of a kind, or those of one namespace."""
        there = self._objects.get(kind, {})
        places = list(there) if namespace is None else [namespace]
        for place in places:
            yield from list(there.get(place, {}).values())

    def owned(self, kind: Kind, namespace: str, owner: str) -> Iterator[Object]:
        """Return the objects of a kind that name this owner, in order of their names."""
        there = self._objects.get(kind, {}).get(namespace, {})
        for name in sorted(self._owned.get((kind, namespace, owner), ())):
            yield there[name]

    def count(self, kind: Kind) -> int:
        """Return the number of objects of a kind."""
        return sum(map(len, self._objects.get(kind, {}).values()))

    # Writing

    def put(self, kind: Kind, subject: Object) -> None:
        """Store an object, unless a newer version or its deletion was seen already."""
        namespace, name = key_of(subject)
        before = self.get(kind, namespace, name)
        if subject["metadata"].get("uid", "") in self._gone:
            return
        if before is not None and version_of(before) >= version_of(subject):
            return
        after = self._objects.setdefault(kind, {}).setdefault(namespace, {})[name] = _trimmed(kind, subject)
        if before is not None and (owner := self._owner(kind, before)) is not None:
            self._owned[kind, namespace, owner].discard(name)
        if (owner := self._owner(kind, after)) is not None:
            self._owned.setdefault((kind, namespace, owner), set()).add(name)
        self._listener(kind, before, after)

    def remove(self, kind: Kind, subject: Object) -> None:
        """Remove a deleted object."""
        namespace, name = key_of(subject)
        uid = subject["metadata"].get("uid", "")
        self._remember_gone(uid)
        before = self.get(kind, namespace, name)
        if before is None or before["metadata"].get("uid", "") != uid:
            return
        del self._objects[kind][namespace][name]
        if (owner := self._owner(kind, before)) is not None:
            self._owned[kind, namespace, owner].discard(name)
        self._listener(kind, before, None)

    def relist(self, kind: Kind, subjects: list[Object], *, version: int, namespace: str = "") -> None:
        """Store a listing of one namespace or of all; cached objects that are older and not listed are deleted."""
        for subject in subjects:
            self.put(kind, subject)
        listed = {key_of(subject) for subject in subjects}
        for subject in list(self.all(kind, namespace or None)):
            if key_of(subject) not in listed and version_of(subject) <= version:
                self.remove(kind, subject)

    def _owner(self, kind: Kind, subject: Object) -> str | None:
        field = self._owner_fields.get(kind)
        return None if field is None else str(subject.get("spec", {}).get(field, ""))

    def _remember_gone(self, uid: str) -> None:
        if uid:
            self._gone[uid] = None
            while len(self._gone) > _GONE_REMEMBERED:
                self._gone.popitem(last=False)


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

"""Server-side apply under one field manager; sends nothing for an object that is already as desired.

An annotation holds a digest of what was applied last: comparing desired with live fields would not reveal a field that
is no longer desired.

The operator never changes an object that it does not own. Server-side apply would merge into any object of that name,
and an ownerReference among the merged fields would have it garbage-collected with the StoreCluster. So the applier
reads before each write. It creates a missing object by POST, which fails if another client created it first. It applies
to an existing object only if the owner is the same, and by uid. Deletions follow the same rule.

The owner of an object is the StoreCluster that is its controller (ownerReference). For an object in another namespace,
or without a StoreCluster, the annotation `evenkeel.dev/owner` names the owner.
"""

from __future__ import annotations

import copy
import enum
import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from evenkeel.errors import ApiConflictError, ApiNotFoundError, ForeignObjectError
from evenkeel.kube.kube_client import FIELD_MANAGER, Kube
from evenkeel.kube.object_kinds import Object, kind_of
from evenkeel_operator.manifests.object_names import OWNER_ANNOTATION

__all__ = [
    "APPLIED_ANNOTATION",
    "Applied",
    "Applier",
    "covers",
    "foreign",
    "owned",
    "with_digest",
    "written_by_operator",
]

APPLIED_ANNOTATION: Final = "evenkeel.dev/applied"
_REMEMBERED: Final = 10_000
_TRIES: Final = 5


class Applied(enum.StrEnum):
    """Result of applying an object."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


class Applier:
    """Applies objects; remembers the digests of objects that are not watched."""

    def __init__(self, kube: Kube, *, on_write: Callable[[Object], None] = lambda _: None) -> None:
        """`on_write` is called with every object as the API server returned it."""
        self._kube = kube
        self._on_write = on_write
        self._applied: dict[tuple[str, str, str], str] = {}

    async def apply(self, wanted: Object, live: Object | None = None, *, watched: bool = False) -> Applied:
        """Create or update the object; `live` is the cached object if its kind is `watched`.

        ForeignObjectError if an object of that name has another owner.
        """
        subject = with_digest(wanted)
        metadata = subject["metadata"]
        key = (kind_of(subject).name, metadata.get("namespace", ""), metadata["name"])
        digest = metadata["annotations"][APPLIED_ANNOTATION]
        applied = not watched and self._applied.get(key) == digest
        if applied if live is None else covers(live, subject):
            return Applied.UNCHANGED
        result = await self._create_or_update(subject)
        self._remember(key, digest)
        return result

    async def _create_or_update(self, subject: Object) -> Applied:
        """Write on the basis of a fresh read; read again after a conflict."""
        for _ in range(_TRIES):
            found = await self._find(subject)
            try:
                if found is None:
                    self._on_write(await self._kube.create(subject))
                    return Applied.CREATED
                if not owned(found, subject):
                    raise foreign(found)
                if covers(found, subject):
                    self._on_write(found)
                    return Applied.UNCHANGED
                self._on_write(await self._update(subject, found))
                return Applied.UPDATED
            except ApiConflictError:
                continue
        kind, name = subject["kind"], subject["metadata"]["name"]
        raise ApiConflictError(f"{kind} {name} changed during every attempt to apply it; retrying later", status=409)

    async def _update(self, subject: Object, found: Object) -> Object:
        """Apply to exactly this object (by uid), overriding fields that other managers set."""
        exact = copy.deepcopy(subject)
        exact["metadata"]["uid"] = found["metadata"]["uid"]
        try:
            await self._adopt_created_fields(found)
            return (await self._kube.apply(exact, force=True)).body
        except ApiNotFoundError as error:
            raise ApiConflictError(str(error), status=409) from error

    async def _adopt_created_fields(self, found: Object) -> None:
        """Mark the fields of an object created by POST as applied; apply could not remove them otherwise."""
        ours = [
            (index, entry["operation"])
            for index, entry in enumerate(found["metadata"].get("managedFields", ()))
            if entry.get("manager") == FIELD_MANAGER and not entry.get("subresource")
        ]
        if [operation for _, operation in ours] == ["Update"]:
            path = f"/metadata/managedFields/{ours[0][0]}/operation"
            await self._kube.patch(found, {"op": "replace", "path": path, "value": "Apply"})

    async def delete(self, wanted: Object) -> bool:
        """Delete the object of that name if the owner is the same; return whether it was deleted."""
        found = await self._find(wanted)
        self._applied.pop((wanted["kind"], wanted["metadata"].get("namespace", ""), wanted["metadata"]["name"]), None)
        return found is not None and owned(found, wanted) and await self._kube.delete_exactly(found)

    async def _find(self, wanted: Object) -> Object | None:
        metadata = wanted["metadata"]
        return await self._kube.get(kind_of(wanted), metadata["name"], metadata.get("namespace", ""))

    def forget(self) -> None:
        """Forget all digests, so that objects that are not watched are compared again."""
        self._applied.clear()

    def _remember(self, key: tuple[str, str, str], digest: str) -> None:
        if len(self._applied) >= _REMEMBERED:
            self.forget()
        self._applied[key] = digest


# Ownership


def owned(live: Object, wanted: Object) -> bool:
    """Whether the operator created the live object, for the same owner as the desired one."""
    if (controller := _controller(wanted)) is not None:
        return _controller(live) == controller
    owner = _annotations(live).get(OWNER_ANNOTATION)
    if owner is not None:
        return bool(owner == _annotations(wanted).get(OWNER_ANNOTATION))
    # Releases before this annotation are recognized by labels, digest and field manager.
    return (
        APPLIED_ANNOTATION in _annotations(live)
        and covers(_labels(live), _labels(wanted))
        and written_by_operator(live)
    )


_REMEDY: Final = "rename or delete it, or choose another name for the StoreCluster"


def foreign(found: Object, *, remedy: str = _REMEDY) -> ForeignObjectError:
    """Return the error for an object of another owner that has the desired name."""
    metadata, kind = found["metadata"], kind_of(found).name
    return ForeignObjectError(
        f"{kind} {metadata.get('namespace', '')}/{metadata['name']} exists already and has another owner, so the "
        f"operator does not change it; {remedy}",
        status=409,
    )


def written_by_operator(live: Object) -> bool:
    """Whether the object's managed fields name the operator."""
    return any(entry.get("manager") == FIELD_MANAGER for entry in live["metadata"].get("managedFields", ()))


def _controller(subject: Object) -> str | None:
    owners = subject["metadata"].get("ownerReferences", ())
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def _annotations(subject: Object) -> dict[str, str]:
    return subject["metadata"].get("annotations") or {}


def _labels(subject: Object) -> dict[str, str]:
    return subject["metadata"].get("labels") or {}


def with_digest(wanted: Object) -> Object:
    """Return the object with its own digest in an annotation."""
    subject = copy.deepcopy(wanted)
    digest = hashlib.blake2b(msgspec.json.encode(wanted, order="sorted"), digest_size=16).hexdigest()
    subject["metadata"].setdefault("annotations", {})[APPLIED_ANNOTATION] = digest
    return subject


def covers(live: Any, wanted: Any) -> bool:
    """Whether the live object has every desired field; fields that the API server added are ignored."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(key in live and covers(live[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(covers(one, other) for one, other in zip(live, wanted, strict=True))
        )
    return bool(live == wanted)

"""Objects brought to what is wanted: server-side apply under one field manager, and nothing sent where all is well.

What we applied last is in an annotation as a digest, because a field that is no longer wanted cannot be seen by
comparing what is wanted with what there is.

The operator never changes an object that it does not own. Server-side apply would merge into any object of that name,
and an ownerReference among the merged fields would have it garbage-collected with the StoreCluster. So each write rests
on what was just read: an absent object is created by POST, which fails where somebody else was faster; an existing one
must carry the mark of the same owner, and is applied to under its uid. Deletions follow the same rule.

An object is owned by the StoreCluster that is its controller (ownerReference). Where owner and object are in different
namespaces, or there is no StoreCluster, the annotation `evenkeel.dev/owner` says whose it is.
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
    """What applying an object came to."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


class Applier:
    """Applies objects; those that nobody watches it remembers by their digests."""

    def __init__(self, kube: Kube, *, wrote: Callable[[Object], None] = lambda _: None) -> None:
        """`wrote` is told how an object is after it was sent."""
        self._kube = kube
        self._wrote = wrote
        self._sent: dict[tuple[str, str, str], str] = {}

    async def apply(self, wanted: Object, live: Object | None = None, *, watched: bool = False) -> Applied:
        """Bring the object about; `live` is how it was last seen, where it is `watched`.

        ForeignObjectError where an object of that name belongs to somebody else.
        """
        subject = with_digest(wanted)
        metadata = subject["metadata"]
        key = (kind_of(subject).name, metadata.get("namespace", ""), metadata["name"])
        digest = metadata["annotations"][APPLIED_ANNOTATION]
        sent = not watched and self._sent.get(key) == digest
        if sent if live is None else covers(live, subject):
            return Applied.UNCHANGED
        done = await self._bring_about(subject)
        self._remember(key, digest)
        return done

    async def _bring_about(self, subject: Object) -> Applied:
        """Create or update on the ground of what was just read; read again where it changed in between."""
        for _ in range(_TRIES):
            found = await self._find(subject)
            try:
                if found is None:
                    self._wrote(await self._kube.create(subject))
                    return Applied.CREATED
                if not owned(found, subject):
                    raise foreign(found)
                if covers(found, subject):
                    self._wrote(found)
                    return Applied.UNCHANGED
                self._wrote(await self._update(subject, found))
                return Applied.UPDATED
            except ApiConflictError:
                continue
        kind, name = subject["kind"], subject["metadata"]["name"]
        raise ApiConflictError(f"{kind} {name} changes all the time; it is applied again later", status=409)

    async def _update(self, subject: Object, found: Object) -> Object:
        """Apply to exactly the object that was found; what others set in it is overruled."""
        exact = copy.deepcopy(subject)
        exact["metadata"]["uid"] = found["metadata"]["uid"]
        try:
            await self._take_fields(found)
            return (await self._kube.apply(exact, force=True)).body
        except ApiNotFoundError as error:
            raise ApiConflictError(str(error), status=409) from error

    async def _take_fields(self, found: Object) -> None:
        """Have the fields of an object that we created by POST count as applied: else apply could not remove them."""
        ours = [
            (index, entry["operation"])
            for index, entry in enumerate(found["metadata"].get("managedFields", ()))
            if entry.get("manager") == FIELD_MANAGER and not entry.get("subresource")
        ]
        if [operation for _, operation in ours] == ["Update"]:
            path = f"/metadata/managedFields/{ours[0][0]}/operation"
            await self._kube.patch(found, {"op": "replace", "path": path, "value": "Apply"})

    async def delete(self, wanted: Object) -> bool:
        """Delete the object of that name if it is ours; whether it was, and is now on its way out."""
        found = await self._find(wanted)
        self._sent.pop((wanted["kind"], wanted["metadata"].get("namespace", ""), wanted["metadata"]["name"]), None)
        return found is not None and owned(found, wanted) and await self._kube.delete_exactly(found)

    async def _find(self, wanted: Object) -> Object | None:
        metadata = wanted["metadata"]
        return await self._kube.get(kind_of(wanted), metadata["name"], metadata.get("namespace", ""))

    def forget(self) -> None:
        """Compare everything once more: somebody may have changed what we do not see."""
        self._sent.clear()

    def _remember(self, key: tuple[str, str, str], digest: str) -> None:
        if len(self._sent) >= _REMEMBERED:
            self.forget()
        self._sent[key] = digest


# Whose an object is


def owned(live: Object, wanted: Object) -> bool:
    """Whether an object was made by us, and for the same owner as the one that is wanted."""
    if (controller := _controller(wanted)) is not None:
        return _controller(live) == controller
    owner = _annotations(live).get(OWNER_ANNOTATION)
    if owner is not None:
        return bool(owner == _annotations(wanted).get(OWNER_ANNOTATION))
    # Releases before this annotation marked such objects by their labels and their digest.
    return (
        APPLIED_ANNOTATION in _annotations(live)
        and covers(_labels(live), _labels(wanted))
        and written_by_operator(live)
    )


_REMEDY: Final = "rename or delete it, or choose another name for the StoreCluster"


def foreign(found: Object, *, remedy: str = _REMEDY) -> ForeignObjectError:
    """The error that names an object which is in the way."""
    metadata, kind = found["metadata"], kind_of(found).name
    return ForeignObjectError(
        f"{kind} {metadata.get('namespace', '')}/{metadata['name']} exists already and was not made for this owner, "
        f"so the operator leaves it as it is; {remedy}",
        status=409,
    )


def written_by_operator(live: Object) -> bool:
    """Whether the API server has recorded that the operator wrote the object."""
    return any(entry.get("manager") == FIELD_MANAGER for entry in live["metadata"].get("managedFields", ()))


def _controller(subject: Object) -> str | None:
    owners = subject["metadata"].get("ownerReferences", ())
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def _annotations(subject: Object) -> dict[str, str]:
    return subject["metadata"].get("annotations") or {}


def _labels(subject: Object) -> dict[str, str]:
    return subject["metadata"].get("labels") or {}


def with_digest(wanted: Object) -> Object:
    """The object with the digest of itself in an annotation."""
    subject = copy.deepcopy(wanted)
    digest = hashlib.blake2b(msgspec.json.encode(wanted, order="sorted"), digest_size=16).hexdigest()
    subject["metadata"].setdefault("annotations", {})[APPLIED_ANNOTATION] = digest
    return subject


def covers(live: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; what the API server added by itself does not count."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(key in live and covers(live[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(covers(one, other) for one, other in zip(live, wanted, strict=True))
        )
    return bool(live == wanted)

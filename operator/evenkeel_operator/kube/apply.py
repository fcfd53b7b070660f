"""Objects brought to what is wanted: server-side apply under one name, and nothing sent where all is well.

What we applied last is in an annotation as a digest, because a field that is no longer wanted cannot be seen by
comparing what is wanted with what there is.
"""

from __future__ import annotations

import copy
import enum
import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from evenkeel.errors import ApiConflictError, ApiForbiddenError
from evenkeel.kube.client import Kube
from evenkeel.kube.kinds import Object, kind_of

__all__ = ["APPLIED_ANNOTATION", "Applied", "Applier", "covers", "stamped"]

APPLIED_ANNOTATION: Final = "evenkeel.dev/applied"
_REMEMBERED: Final = 10_000


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

    async def apply(self, wanted: Object, live: Object | None = None) -> Applied:
        """Bring the object about; `live` is how it was last seen, where somebody looks."""
        subject = stamped(wanted)
        metadata = subject["metadata"]
        key = (kind_of(subject).name, metadata.get("namespace", ""), metadata["name"])
        digest = metadata["annotations"][APPLIED_ANNOTATION]
        if self._sent.get(key) == digest if live is None else covers(live, subject):
            return Applied.UNCHANGED
        try:
            answer = await self._kube.apply(subject)
        except ApiConflictError:
            if not await self._ours(subject):
                raise
            answer = await self._kube.apply(subject, force=True)
        self._remember(key, digest)
        self._wrote(answer.body)
        if answer.status == 201:
            return Applied.CREATED
        before = live["metadata"]["resourceVersion"] if live is not None else ""
        return Applied.UNCHANGED if answer.body["metadata"]["resourceVersion"] == before else Applied.UPDATED

    async def _ours(self, wanted: Object) -> bool:
        """Whether we made the object, so that what others set in it may be overruled; never those of other people."""
        try:
            live = await self._kube.get(kind_of(wanted), wanted["metadata"]["name"], wanted["metadata"]["namespace"])
        except ApiForbiddenError:
            return False
        return live is not None and _owners(live) == _owners(wanted) and covers(_labels(live), _labels(wanted))

    def forget(self) -> None:
        """Send everything once more: somebody may have changed what we do not see."""
        self._sent.clear()

    def _remember(self, key: tuple[str, str, str], digest: str) -> None:
        if len(self._sent) >= _REMEMBERED:
            self.forget()
        self._sent[key] = digest


def stamped(wanted: Object) -> Object:
    """The object with the digest of itself in an annotation."""
    subject = copy.deepcopy(wanted)
    digest = hashlib.blake2b(msgspec.json.encode(wanted, order="sorted"), digest_size=16).hexdigest()
    subject["metadata"].setdefault("annotations", {})[APPLIED_ANNOTATION] = digest
    return subject


def _owners(subject: Object) -> set[str]:
    return {owner["uid"] for owner in subject["metadata"].get("ownerReferences", ())}


def _labels(subject: Object) -> dict[str, str]:
    return dict(subject["metadata"].get("labels", {}))


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

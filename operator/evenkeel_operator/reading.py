"""Objects of the API server as resources of ours, each version read once."""

from __future__ import annotations

from typing import TypeVar

from evenkeel.errors import InvalidInputError
from evenkeel.kube.kinds import Object
from evenkeel.model.loading import Resource, parse
from evenkeel_operator.cache import version_of
from evenkeel_operator.statuses import Statuses

__all__ = ["FINALIZER", "Reader"]

FINALIZER = "evenkeel.dev/data"
"""Keeps a Table or a StoreCluster until nothing is left of its data."""

R = TypeVar("R", bound=Resource)
_Read = tuple[int, object, Resource | InvalidInputError]


class Reader:
    """Remembers what it has read for as long as the object stays the same."""

    def __init__(self, statuses: Statuses) -> None:
        self._statuses = statuses
        self._read: dict[str, _Read] = {}

    def read(self, kind: type[R], subject: Object) -> R:
        """The resource, with the newest status that was set; InvalidInputError where it is none."""
        uid, status = subject["metadata"]["uid"], self._statuses.of(subject)
        known = self._read.get(uid)
        if known is None or known[0] != version_of(subject) or known[1] is not status:
            known = self._read[uid] = (version_of(subject), status, _parsed(subject, status))
        found = known[2]
        if isinstance(found, InvalidInputError):
            raise found
        assert isinstance(found, kind)
        return found

    def forget(self, subject: Object) -> None:
        """The object is gone."""
        self._read.pop(subject["metadata"].get("uid", ""), None)


def _parsed(subject: Object, status: Object) -> Resource | InvalidInputError:
    metadata = subject["metadata"]
    source = f"{subject['kind']} {metadata['namespace']}/{metadata['name']}"
    document = {**subject, "status": status} if status else {k: v for k, v in subject.items() if k != "status"}
    try:
        return parse(document, source)
    except InvalidInputError as error:
        return error

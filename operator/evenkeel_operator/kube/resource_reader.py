"""Parses API objects into resource models, each version once."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from evenkeel.controller.resources_api import Status
from evenkeel.errors import InvalidInputError
from evenkeel.kube.object_kinds import Object
from evenkeel.model.resource_loading import Resource, parse
from evenkeel_operator.kube.kube_status_writer import KubeStatusWriter

__all__ = ["FINALIZER", "Reader"]

FINALIZER = "evenkeel.dev/data"
"""Finalizer that keeps a Table or StoreCluster until its data is removed."""

R = TypeVar("R", bound=Resource)


class _Read(NamedTuple):
    subject: Object
    status: Object
    found: Resource | InvalidInputError


class Reader:
    """Parses objects and caches the result while the object stays the same.

    Most changes of an object are statuses that the operator wrote. They are not parsed again: parsing a status of
    sixty-four partitions takes longer than the reconciliation that wrote it.
    """

    def __init__(self, statuses: KubeStatusWriter) -> None:
        self._statuses = statuses
        self._read: dict[str, _Read] = {}
        self._set: dict[str, tuple[Object, Status]] = {}
        """By uid, the status that was set last, as a document and as a model."""

    def read(self, kind: type[R], subject: Object) -> R:
        """Parse a resource with the newest status that was set; InvalidInputError if it is invalid."""
        uid, status = subject["metadata"]["uid"], self._statuses.of(subject)
        known = self._read.get(uid)
        if known is None or known.subject is not subject or known.status is not status:
            known = self._read[uid] = _Read(subject, status, self._resource(known, subject, status))
        found = known.found
        if isinstance(found, InvalidInputError):
            raise found
        assert isinstance(found, kind)
        return found

    def set(self, subject: Object, written: Object, status: Status) -> None:
        """Remember a status that was set on an object, with `written` as its document."""
        self._set[subject["metadata"]["uid"]] = (written, status)

    def forget(self, subject: Object) -> None:
        """Forget a deleted object."""
        uid = subject["metadata"].get("uid", "")
        self._read.pop(uid, None)
        self._set.pop(uid, None)

    def _resource(self, known: _Read | None, subject: Object, status: Object) -> Resource | InvalidInputError:
        written, given = self._set.get(subject["metadata"]["uid"], (None, None))
        if known is None or isinstance(known.found, InvalidInputError) or written != status:
            return _parsed(subject, status)
        if known.subject is not subject and _rest(known.subject) != _rest(subject):
            return _parsed(subject, status)
        return known.found.model_copy(update={"status": given})


def _rest(subject: Object) -> tuple[Object, Object]:
    """Return the metadata without the resource version, and the spec."""
    metadata = {name: value for name, value in subject["metadata"].items() if name != "resourceVersion"}
    return metadata, subject.get("spec", {})


def _parsed(subject: Object, status: Object) -> Resource | InvalidInputError:
    metadata = subject["metadata"]
    source = f"{subject['kind']} {metadata['namespace']}/{metadata['name']}"
    document = {**subject, "status": status} if status else {k: v for k, v in subject.items() if k != "status"}
    try:
        return parse(document, source)
    except InvalidInputError as error:
        return error

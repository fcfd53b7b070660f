"""Objects of the API server as resources of ours, each version read once."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from evenkeel.controller.resources_api import Status
from evenkeel.errors import InvalidInputError
from evenkeel.kube.object_kinds import Object
from evenkeel.model.resource_loading import Resource, parse
from evenkeel_operator.kube.kube_status_writer import StatusWriter

__all__ = ["FINALIZER", "Reader"]

FINALIZER = "evenkeel.dev/data"
"""Keeps a Table or a StoreCluster until nothing is left of its data."""

R = TypeVar("R", bound=Resource)


class _Read(NamedTuple):
    subject: Object
    status: Object
    found: Resource | InvalidInputError


class Reader:
    """Remembers what it has read for as long as the object stays the same.

    Most changes of an object are statuses that were set here. These are not read back from what was sent: a status of
    sixty-four partitions takes longer to read than the look that wrote it.
    """

    def __init__(self, statuses: StatusWriter) -> None:
        self._statuses = statuses
        self._read: dict[str, _Read] = {}
        self._set: dict[str, tuple[Object, Status]] = {}
        """By uid, the status that was last set, as it is sent and as it was given."""

    def read(self, kind: type[R], subject: Object) -> R:
        """The resource, with the newest status that was set; InvalidInputError where it is none."""
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
        """A status was given to an object, which is `written` where it is sent."""
        self._set[subject["metadata"]["uid"]] = (written, status)

    def forget(self, subject: Object) -> None:
        """The object is gone."""
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
    """All of an object but its status, and what says that it has another."""
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

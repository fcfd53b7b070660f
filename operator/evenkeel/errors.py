"""Every error Evenkeel raises on purpose.

    EvenkeelError
    ├── InvalidInputError          what a user wrote cannot be accepted; nothing was changed
    ├── MetastoreError
    │   ├── UnreachableError       no etcd endpoint answers
    │   │   └── NoSpaceError       etcd has used up its quota: it answers reads, and refuses writes
    │   ├── AuthenticationError    etcd refuses our user, password or certificate
    │   ├── CompactedError         a revision was asked for that etcd no longer keeps
    │   ├── ClusterMismatchError   another etcd cluster answers than before, or one that lost its last changes
    │   ├── RefusedError           the request itself is not acceptable to etcd; nothing was changed
    │   ├── LeaseNotFoundError     the lease a key was to be bound to is gone; nothing was changed
    │   └── FencedError            another operator holds the epoch; this one must stop writing
    ├── KubernetesError            the API server refuses a request
    │   ├── ApiUnreachableError    it does not answer
    │   ├── ApiForbiddenError      we lack a permission
    │   ├── ApiNotFoundError
    │   ├── ApiConflictError       the object has changed, or is there already
    │   └── ForeignObjectError     an object of the wanted name exists that the operator does not own
    ├── CertificateMissingError    whoever signs for stores has not done so
    ├── MetastoreLossError         the metastore lacks what it had of a table whose data is on the stores
    ├── MalformedRecordError       a metastore key holds something no version of Evenkeel wrote
    ├── UnsupportedVersionError    a cluster or a volume is of a version that this release cannot work with
    ├── PlanningError              no assignment satisfies the hard rules
    ├── RebalancerError            a rebalancer could not be loaded, raised, hung or answered nonsense
    ├── StoreError                 a store does not do what a client asks
    │   ├── RequestError           what is asked cannot be understood; nothing was written
    │   │   ├── UnknownTableError
    │   │   ├── UnknownColumnError
    │   │   ├── FilterError        a filter or an aggregate that cannot be computed
    │   │   ├── RowsError          columns, types or values that do not fit the table
    │   │   ├── WrongPartitionError  rows that belong to another partition
    │   │   ├── TooLargeError      more in one batch than an entry takes
    │   │   └── UnknownPinError    no pin of that name: it ended, or never was
    │   ├── AccessError            no token, or a wrong one
    │   ├── NotLeaderError         another store has to be asked; says which
    │   ├── BusyError              never written; try again later
    │   ├── DiskFullError          never written; the store has no room left
    │   ├── UnavailableError       nobody could answer in time; try again
    │   ├── OutcomeUnknownError    perhaps written; try again with the same token
    │   ├── TableDroppedError      the table went away in the middle
    │   └── RetentionError         changes were asked for that are no longer kept
    └── WireError
        ├── FrameError             bytes that are no frame of the protocol; they cost their connection, nothing else
        ├── HandshakeError         the other end is not the one we may work with, or speaks another version
        ├── DisconnectedError      the other end is not there; a request that was under way may have been carried out
        └── StateMachineError      the state machine says that it could not do what the sidecar asked

A message says what was wrong, where, and what to do about it. The command line prints it without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "AccessError",
    "ApiConflictError",
    "ApiForbiddenError",
    "ApiNotFoundError",
    "ApiUnreachableError",
    "AuthenticationError",
    "BusyError",
    "CertificateMissingError",
    "ClusterMismatchError",
    "CompactedError",
    "DisconnectedError",
    "DiskFullError",
    "EvenkeelError",
    "FencedError",
    "FilterError",
    "ForeignObjectError",
    "FrameError",
    "HandshakeError",
    "InputProblem",
    "InvalidInputError",
    "KubernetesError",
    "LeaseNotFoundError",
    "MalformedRecordError",
    "MetastoreError",
    "MetastoreLossError",
    "NoSpaceError",
    "NotLeaderError",
    "OutcomeUnknownError",
    "PlanningError",
    "RebalancerError",
    "RefusedError",
    "RequestError",
    "RetentionError",
    "RowsError",
    "StateMachineError",
    "StoreError",
    "TableDroppedError",
    "TooLargeError",
    "UnavailableError",
    "UnknownColumnError",
    "UnknownPinError",
    "UnknownTableError",
    "UnreachableError",
    "UnsupportedVersionError",
    "WireError",
    "WrongPartitionError",
]


class EvenkeelError(Exception):
    """Base of the tree above."""


class InputProblem(NamedTuple):
    """One thing wrong with an input: where it stands, which field, and what to do."""

    source: str
    line: int
    """From 1; 0 where the input has no lines."""
    path: str
    text: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return ": ".join(part for part in (place, self.path, self.text) if part)


class InvalidInputError(EvenkeelError):
    """Input refused as a whole; the message names field, value and remedy, for every problem found."""

    def __init__(self, message: str = "", *, problems: Iterable[InputProblem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message or "\n".join(map(str, self.problems)))


class MetastoreError(EvenkeelError):
    """The metastore could not do what was asked."""


class UnreachableError(MetastoreError):
    """No etcd endpoint answers."""


class NoSpaceError(UnreachableError):
    """Etcd refuses every write until it is compacted, defragmented and its NOSPACE alarm is disarmed; reads go on.

    It is retried like an etcd that does not answer: whoever waits for one waits for the other.
    """


class AuthenticationError(MetastoreError):
    """Etcd refuses the credentials."""


class CompactedError(MetastoreError):
    """The revision asked for is older than what etcd keeps."""

    def __init__(self, message: str, *, first_revision: int) -> None:
        super().__init__(message)
        self.first_revision = first_revision


class ClusterMismatchError(MetastoreError):
    """Etcd was replaced or restored from a backup under our feet; nothing read before may be relied on."""


class RefusedError(MetastoreError):
    """A request no etcd would carry out: too many operations, a key put twice, a revision yet to come."""


class LeaseNotFoundError(MetastoreError):
    """A lease expired or was revoked before it was used."""


class FencedError(MetastoreError):
    """The epoch moved on: whoever wrote last has taken over."""


class KubernetesError(EvenkeelError):
    """The API server did not do what was asked; `status` is its answer's, 0 where there was none."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ApiUnreachableError(KubernetesError):
    """The API server does not answer; what was asked may have been done."""


class ApiForbiddenError(KubernetesError):
    """A role is missing."""


class ApiNotFoundError(KubernetesError):
    """There is no such object, or no such kind."""


class ForeignObjectError(KubernetesError):
    """An object that the operator does not own has the name of one that it needs; nothing was changed."""


class ApiConflictError(KubernetesError):
    """Somebody else was first."""


class CertificateMissingError(EvenkeelError):
    """Whoever signs for stores has not done so, or not told by which authority."""


class MetastoreLossError(EvenkeelError):
    """Keys of a table are missing that only a loss of the metastore can have removed; the data is on the stores."""


class MalformedRecordError(EvenkeelError):
    """A metastore value cannot be decoded."""


class UnsupportedVersionError(EvenkeelError):
    """A cluster or a volume is of a version that this release cannot work with; nothing was changed."""


class PlanningError(EvenkeelError):
    """The hard rules leave no assignment."""


class RebalancerError(EvenkeelError):
    """A rebalancer failed; the last good assignment stays in force."""


class WireError(EvenkeelError):
    """Two processes cannot work with each other."""


class FrameError(WireError):
    """What arrived is no frame, or none that may arrive now; `reason` is the name under which it is counted."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class HandshakeError(WireError):
    """The two ends do not fit together; `reason` is the name under which it is counted."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class DisconnectedError(WireError):
    """Nobody is at the other end."""


class StateMachineError(WireError):
    """The state machine refused; nothing after the failed request may be asked of that group before it is reopened."""


class StoreError(EvenkeelError):
    """A store does not do what a client asks; `evenkeel.wire.flight` says how it travels."""


class RequestError(StoreError):
    """What is asked cannot be understood or carried out as it stands."""


class UnknownTableError(RequestError):
    """No table of that name, or no such partition of it."""


class UnknownColumnError(RequestError):
    """The table has no such column."""


class FilterError(RequestError):
    """A filter or an aggregate that cannot be computed."""


class RowsError(RequestError):
    """Rows that do not fit the table: a column is missing, of another type, null or out of range."""


class WrongPartitionError(RequestError):
    """Rows whose key belongs to another partition than the one they were sent to."""


class TooLargeError(RequestError):
    """More than one entry takes; `limit` is in bytes."""

    def __init__(self, message: str, *, limit: int = 0) -> None:
        super().__init__(message)
        self.limit = limit


class UnknownPinError(RequestError):
    """No pin of that name."""


class AccessError(StoreError):
    """No token, or a wrong one."""


class NotLeaderError(StoreError):
    """Another store has to be asked: `store`, at `address`, where they are known."""

    def __init__(self, message: str, *, store: str = "", address: str = "") -> None:
        super().__init__(message)
        self.store = store
        self.address = address


class BusyError(StoreError):
    """Too much is under way."""


class DiskFullError(StoreError):
    """The store has no room for more rows; it goes on answering reads."""


class UnavailableError(StoreError):
    """Nobody could answer in time."""


class OutcomeUnknownError(StoreError):
    """Whether it was written will show; only a token makes it safe to try again."""


class TableDroppedError(StoreError):
    """The table went away in the middle."""


class RetentionError(StoreError):
    """Changes are kept from index `first` on, and earlier ones were asked for."""

    def __init__(self, message: str, *, first: int = 0) -> None:
        super().__init__(message)
        self.first = first

"""The exceptions that Evenkeel raises on purpose.

    EvenkeelError
    ├── InvalidInputError            invalid input; nothing was changed
    ├── MetastoreError
    │   ├── UnreachableError         no etcd endpoint answers; retry
    │   │   └── NoSpaceError         etcd exceeded its quota: it serves reads and refuses writes
    │   ├── AuthenticationError      etcd rejects the user, the password or the certificate
    │   ├── CompactedError           the requested revision is compacted
    │   ├── ClusterMismatchError     the etcd cluster was replaced, or restored from a backup
    │   ├── RefusedError             etcd rejects the request as invalid; nothing was changed
    │   ├── LeaseNotFoundError       the lease is expired or revoked; nothing was changed
    │   └── FencedError              another operator holds the epoch; this one must stop writing
    ├── KubernetesError              the API server rejects a request
    │   ├── ApiUnreachableError      the API server does not answer; the request may have been carried out
    │   ├── ApiForbiddenError        a permission is missing
    │   ├── ApiNotFoundError         no such object or kind
    │   ├── ApiConflictError         the object was changed concurrently, or exists already
    │   └── ForeignObjectError       the name is taken by an object that the operator does not own
    ├── CertificateMissingError      the certificate of the stores is not issued
    ├── MetastoreLossError           the metastore lost keys of a table whose data is on the stores
    ├── MalformedRecordError         a metastore value cannot be decoded
    ├── UnsupportedVersionError      this release does not support the version of a cluster or a volume
    ├── PlanningError                no assignment satisfies the hard rules
    ├── RebalancerError              a rebalancer failed to load, raised, timed out or returned an invalid result
    ├── StoreError                   a store rejects or fails a client's request
    │   ├── RequestError             the request is invalid; nothing was written
    │   │   ├── UnknownTableError    no such table or partition
    │   │   ├── UnknownColumnError   no such column
    │   │   ├── FilterError          the filter or the aggregate cannot be computed
    │   │   ├── RowsError            the rows do not match the schema
    │   │   ├── WrongPartitionError  the rows belong to another partition
    │   │   ├── TooLargeError        the batch exceeds the size of a log entry
    │   │   └── UnknownPinError      the pin expired or never existed
    │   ├── AccessError              the access token is missing or wrong
    │   ├── NotLeaderError           another store leads the partition; it names the store if known
    │   ├── BusyError                not written; the store is overloaded; retry later
    │   ├── DiskFullError            not written; the disk of the store is full
    │   ├── UnavailableError         no answer within the deadline; retry
    │   ├── OutcomeUnknownError      maybe written; retry with the same write token
    │   ├── TableDroppedError        the table was dropped during the request
    │   └── RetentionError           the requested changes are past their retention
    └── WireError
        ├── FrameError               malformed or unexpected frame; the connection is closed
        ├── HandshakeError           the peer is not the expected one, or speaks another protocol version
        ├── DisconnectedError        the connection is lost; a pending request may have been carried out
        └── StateMachineError        the state machine failed a request of the sidecar

A message has three parts: what failed, why, and what to do. The command line prints it without a traceback.
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
    """The base class of all errors above."""


class InputProblem(NamedTuple):
    """One problem of an input: its location, the field and what to do."""

    source: str
    line: int
    """Counted from 1; 0 where the input has no lines."""
    path: str
    text: str

    def __str__(self) -> str:
        location = f"{self.source}:{self.line}" if self.line else self.source
        return ": ".join(part for part in (location, self.path, self.text) if part)


class InvalidInputError(EvenkeelError):
    """The input is invalid; the message lists every problem with its field, value and remedy."""

    def __init__(self, message: str = "", *, problems: Iterable[InputProblem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message or "\n".join(map(str, self.problems)))


class MetastoreError(EvenkeelError):
    """A metastore request failed."""


class UnreachableError(MetastoreError):
    """No etcd endpoint answers."""


class NoSpaceError(UnreachableError):
    """Etcd refuses writes until it is compacted, defragmented and its NOSPACE alarm is disarmed."""

    # A subclass of UnreachableError because callers retry both in the same way.


class AuthenticationError(MetastoreError):
    """Etcd rejects the credentials."""


class CompactedError(MetastoreError):
    """The requested revision is compacted; `first_revision` is the oldest that etcd has."""

    def __init__(self, message: str, *, first_revision: int) -> None:
        super().__init__(message)
        self.first_revision = first_revision


class ClusterMismatchError(MetastoreError):
    """The etcd cluster was replaced or restored from a backup, so earlier reads are invalid."""


class RefusedError(MetastoreError):
    """Etcd rejects the request: too many operations, a key put twice, or a future revision."""


class LeaseNotFoundError(MetastoreError):
    """The lease is expired or revoked."""


class FencedError(MetastoreError):
    """Another operator took over with a newer epoch."""


class KubernetesError(EvenkeelError):
    """The API server rejects a request; `status` is the HTTP status, or 0 if there was no response."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ApiUnreachableError(KubernetesError):
    """The API server does not answer; the request may have been carried out."""


class ApiForbiddenError(KubernetesError):
    """A permission is missing."""


class ApiNotFoundError(KubernetesError):
    """The object or its kind does not exist."""


class ForeignObjectError(KubernetesError):
    """The name of an object that the operator needs is taken by one that it does not own; nothing was changed."""


class ApiConflictError(KubernetesError):
    """The object was changed concurrently, or exists already."""


class CertificateMissingError(EvenkeelError):
    """The certificate of the stores, or its CA, is not issued yet."""


class MetastoreLossError(EvenkeelError):
    """The metastore lost keys of a table; its data is still on the stores."""


class MalformedRecordError(EvenkeelError):
    """A metastore value cannot be decoded."""


class UnsupportedVersionError(EvenkeelError):
    """This release does not support the version of a cluster or a volume; nothing was changed."""


class PlanningError(EvenkeelError):
    """No assignment satisfies the hard rules."""


class RebalancerError(EvenkeelError):
    """A rebalancer failed; the last valid assignment stays in force."""


class WireError(EvenkeelError):
    """Communication between two processes failed."""


class FrameError(WireError):
    """A frame is malformed or unexpected; `reason` is its label in metrics."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class HandshakeError(WireError):
    """The peer is not the expected one or is incompatible; `reason` is its label in metrics."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class DisconnectedError(WireError):
    """The connection is lost."""


class StateMachineError(WireError):
    """The state machine failed a request; the group must be reopened before the next one."""


class StoreError(EvenkeelError):
    """A store rejects or fails a client's request; `evenkeel.wire.flight` defines its encoding."""


class RequestError(StoreError):
    """The request is invalid."""


class UnknownTableError(RequestError):
    """The table or the partition does not exist."""


class UnknownColumnError(RequestError):
    """The table has no such column."""


class FilterError(RequestError):
    """The filter or the aggregate cannot be computed."""


class RowsError(RequestError):
    """The rows do not match the schema: a column is missing, of another type, null or out of range."""


class WrongPartitionError(RequestError):
    """The rows belong to another partition than the one they were sent to."""


class TooLargeError(RequestError):
    """The batch exceeds the size of a log entry; `limit` is in bytes."""

    def __init__(self, message: str, *, limit: int = 0) -> None:
        super().__init__(message)
        self.limit = limit


class UnknownPinError(RequestError):
    """The pin expired or never existed."""


class AccessError(StoreError):
    """The access token is missing or wrong."""


class NotLeaderError(StoreError):
    """Another store leads the partition: `store` at `address`, or empty if unknown."""

    def __init__(self, message: str, *, store: str = "", address: str = "") -> None:
        super().__init__(message)
        self.store = store
        self.address = address


class BusyError(StoreError):
    """The store is overloaded; nothing was written."""


class DiskFullError(StoreError):
    """The disk of the store is full; it still serves reads."""


class UnavailableError(StoreError):
    """No store answered within the deadline."""


class OutcomeUnknownError(StoreError):
    """The write may have been carried out; a retry is safe only with the same write token."""


class TableDroppedError(StoreError):
    """The table was dropped during the request."""


class RetentionError(StoreError):
    """The requested changes are past their retention; `first` is the oldest index that is kept."""

    def __init__(self, message: str, *, first: int = 0) -> None:
        super().__init__(message)
        self.first = first

"""Maps errors to the reasons and messages of conditions."""

from __future__ import annotations

from evenkeel.errors import (
    AuthenticationError,
    ClusterMismatchError,
    EvenkeelError,
    FencedError,
    InvalidInputError,
    MalformedRecordError,
    MetastoreLossError,
    NoSpaceError,
    PlanningError,
    RebalancerError,
    UnreachableError,
    UnsupportedVersionError,
)
from evenkeel.model.conditions import Reason
from evenkeel.reconcile.readiness import Problem

__all__ = ["UNAVAILABLE", "problem_of", "unavailable_problem"]

UNAVAILABLE = (UnreachableError, AuthenticationError, ClusterMismatchError, UnsupportedVersionError)
"""Errors that suspend reconciliation of every table: etcd is unreachable, refuses the credentials or is a different
cluster, or this release does not support the cluster version."""
_REASONS: tuple[tuple[type[EvenkeelError], Reason], ...] = (
    (MetastoreLossError, Reason.METASTORE_MISMATCH),
    (PlanningError, Reason.NO_FEASIBLE_PLACEMENT),
    (RebalancerError, Reason.REBALANCER_FAILED),
    (InvalidInputError, Reason.SPEC_INVALID),
    (MalformedRecordError, Reason.MALFORMED_RECORD),
)


def unavailable_problem(error: EvenkeelError) -> Problem:
    """Return why reconciliation of every table is suspended."""
    reason = Reason.METASTORE_UNREACHABLE
    if isinstance(error, NoSpaceError):
        reason = Reason.METASTORE_FULL
    elif isinstance(error, ClusterMismatchError):
        reason = Reason.METASTORE_MISMATCH
    elif isinstance(error, UnsupportedVersionError):
        reason = Reason.VERSION_UNSUPPORTED
    return Problem(reason, str(error))


def problem_of(error: Exception) -> Problem:
    """Return the problem that an error is for one table; raise it again if it concerns every table."""
    if isinstance(error, (FencedError, *UNAVAILABLE)):
        raise error
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return Problem(reason, str(error))
    return Problem(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")

"""What went wrong, in the words of a condition. What is nobody's table's fault is not turned into one."""

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
from evenkeel.reconcile.partition_status import Problem

__all__ = ["UNAVAILABLE", "problem_of", "unavailable_problem"]

UNAVAILABLE = (UnreachableError, AuthenticationError, ClusterMismatchError, UnsupportedVersionError)
"""With these nothing can be done for any table: etcd does not answer, does not let us in, or is another one, or the
cluster is of a version that this release does not support."""
_REASONS: tuple[tuple[type[EvenkeelError], Reason], ...] = (
    (MetastoreLossError, Reason.METASTORE_MISMATCH),
    (PlanningError, Reason.NO_FEASIBLE_PLACEMENT),
    (RebalancerError, Reason.REBALANCER_FAILED),
    (InvalidInputError, Reason.SPEC_INVALID),
    (MalformedRecordError, Reason.MALFORMED_RECORD),
)


def unavailable_problem(error: EvenkeelError) -> Problem:
    """Why nothing can be done for any table."""
    reason = Reason.METASTORE_UNREACHABLE
    if isinstance(error, NoSpaceError):
        reason = Reason.METASTORE_FULL
    elif isinstance(error, ClusterMismatchError):
        reason = Reason.METASTORE_MISMATCH
    elif isinstance(error, UnsupportedVersionError):
        reason = Reason.VERSION_UNSUPPORTED
    return Problem(reason, str(error))


def problem_of(error: Exception) -> Problem:
    """Say it; what concerns everything goes on its way."""
    if isinstance(error, (FencedError, *UNAVAILABLE)):
        raise error
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return Problem(reason, str(error))
    return Problem(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")

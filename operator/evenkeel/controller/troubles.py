"""What went wrong, in the words of a condition. What is nobody's table's fault is not turned into one."""

from __future__ import annotations

from evenkeel.errors import (
    AuthenticationError,
    ClusterMismatchError,
    EvenkeelError,
    FencedError,
    InvalidInputError,
    MalformedRecordError,
    PlanningError,
    RebalancerError,
    UnreachableError,
)
from evenkeel.model.conditions import Reason
from evenkeel.reconcile.partitions import Trouble

__all__ = ["HELPLESS", "trouble_of"]

HELPLESS = (UnreachableError, AuthenticationError, ClusterMismatchError)
"""With these nothing can be done for any table: etcd does not answer, does not let us in, or is another one."""
_REASONS: tuple[tuple[type[EvenkeelError], Reason], ...] = (
    (PlanningError, Reason.NO_FEASIBLE_PLACEMENT),
    (RebalancerError, Reason.REBALANCER_FAILED),
    (InvalidInputError, Reason.SPEC_INVALID),
    (MalformedRecordError, Reason.MALFORMED_RECORD),
)


def trouble_of(error: Exception) -> Trouble:
    """Say it; what concerns everything goes on its way."""
    if isinstance(error, (FencedError, *HELPLESS)):
        raise error
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return Trouble(reason, str(error))
    return Trouble(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")

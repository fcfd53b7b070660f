"""What went wrong, in the words of a condition. What is nobody's table's fault is not turned into one."""

from __future__ import annotations

from evenkeel.errors import (
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

__all__ = ["trouble_of"]

_REASONS: tuple[tuple[type[EvenkeelError], Reason], ...] = (
    (PlanningError, Reason.NO_FEASIBLE_PLACEMENT),
    (RebalancerError, Reason.REBALANCER_FAILED),
    (InvalidInputError, Reason.SPEC_INVALID),
    (MalformedRecordError, Reason.MALFORMED_RECORD),
)


def trouble_of(error: Exception) -> Trouble:
    """Say it; UnreachableError and FencedError concern everything and go on their way."""
    if isinstance(error, (FencedError, UnreachableError)):
        raise error
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return Trouble(reason, str(error))
    return Trouble(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")

"""Conditions and progress in statuses, in the form that `kubectl wait` and Argo CD understand.

A condition keeps its `lastTransitionTime` while its status stays the same, even if reason and message change. Its
`observedGeneration` is the generation of the spec that it describes.

`Reconciling` and `Stalled` are for kstatus, which Flux and others use: True means InProgress and Failed. At most one of
them is True. They are derived from the other conditions (`with_kstatus`), so they never contradict them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from evenkeel.model.resource_base import Count, StatusModel, known_values
from evenkeel.versions import Feature, supports

__all__ = [
    "DERIVED_CONDITIONS",
    "FIRST_TYPES",
    "STALLING",
    "Condition",
    "ConditionType",
    "Conditions",
    "Progress",
    "Reason",
    "Timestamp",
    "condition",
    "condition_of",
    "merge_conditions",
    "parse_timestamp",
    "projected",
    "readable_at",
    "timestamp",
    "unless_past",
    "with_kstatus",
]

ConditionType = Literal[
    "Ready",
    "Available",
    "Progressing",
    "Balanced",
    "Degraded",
    "Accepted",
    "Approved",
    "Reconciling",
    "Stalled",
    "MetastoreMismatch",
]
"""All kinds have Ready, Reconciling and Stalled; Tables and StoreClusters Progressing and Degraded; Tables Available
and Balanced; PartitionAssignments Accepted; RebalancePlans Approved; StoreClusters MetastoreMismatch."""

FIRST_TYPES: Final = frozenset(("Ready", "Progressing", "Balanced", "Degraded", "Accepted", "Approved"))
"""The types that the first release knows. Its CRDs refuse a condition of any other type, and its operator cannot read
an object that has one."""

_LONGEST_MESSAGE = 4096

Timestamp = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]


class Reason(enum.StrEnum):
    """Machine-readable reason of a condition; the message has the details."""

    AS_EXPECTED = "AsExpected"
    RECONCILING = "Reconciling"
    REBALANCING = "Rebalancing"
    PAUSED = "Paused"
    AWAITING_APPROVAL = "AwaitingApproval"
    APPROVED = "Approved"
    SUPERSEDED = "Superseded"
    SPEC_INVALID = "SpecInvalid"
    SPEC_IGNORED = "SpecIgnored"
    STORE_CLUSTER_MISSING = "StoreClusterMissing"
    TABLE_MISSING = "TableMissing"
    NO_FEASIBLE_PLACEMENT = "NoFeasiblePlacement"
    REBALANCER_FAILED = "RebalancerFailed"
    METASTORE_UNREACHABLE = "MetastoreUnreachable"
    METASTORE_FULL = "MetastoreFull"
    METASTORE_MISMATCH = "MetastoreMismatch"
    METASTORE_ADOPTING = "MetastoreAdopting"
    METASTORE_ADOPTED = "MetastoreAdopted"
    VERSION_UNSUPPORTED = "VersionUnsupported"
    MALFORMED_RECORD = "MalformedRecord"
    INTERNAL_ERROR = "InternalError"
    STORES_NOT_READY = "StoresNotReady"
    STORES_LOST = "StoresLost"
    NO_QUORUM = "NoQuorum"
    NO_LEADER = "NoLeader"
    DATA_LOST = "DataLost"
    CATCH_UP_FAILING = "CatchUpFailing"
    REPLICA_DAMAGED = "ReplicaDamaged"
    CLOCK_SKEW = "ClockSkew"
    VOLUME_UNBOUND = "VolumeUnbound"
    CERTIFICATE_MISSING = "CertificateMissing"
    TABLES_REMAIN = "TablesRemain"
    FORBIDDEN = "Forbidden"
    API_REFUSED = "ApiRefused"
    FOREIGN_OBJECT = "ForeignObject"


DERIVED_CONDITIONS: Final = frozenset(("Available", "Reconciling", "Stalled"))
"""Conditions for programs, derived from Ready, Progressing and Degraded; people need not see them."""
STALLING: Final = frozenset(
    (
        Reason.SPEC_INVALID,
        Reason.SPEC_IGNORED,
        Reason.NO_FEASIBLE_PLACEMENT,
        Reason.REBALANCER_FAILED,
        Reason.VERSION_UNSUPPORTED,
        Reason.MALFORMED_RECORD,
        Reason.INTERNAL_ERROR,
        Reason.FORBIDDEN,
        Reason.API_REFUSED,
        Reason.FOREIGN_OBJECT,
        Reason.NO_QUORUM,
        Reason.DATA_LOST,
        Reason.REPLICA_DAMAGED,
    )
)
"""Reasons not to be Ready that need an intervention by a user."""


class Condition(StatusModel):
    """A condition; at most one of each type per object."""

    type: Annotated[str, known_values(*get_args(ConditionType))]
    """Type of the condition."""
    status: Annotated[str, known_values("True", "False", "Unknown")]
    """Whether the condition holds."""
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?$")]
    """Machine-readable reason in CamelCase."""
    message: Annotated[str, Field(max_length=_LONGEST_MESSAGE)] = ""
    """Human-readable details."""
    last_transition_time: Timestamp
    """Time of the last change of `status`."""
    observed_generation: Count = 0
    """The `metadata.generation` that the condition describes."""


Conditions = Annotated[
    tuple[Condition, ...],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


class Progress(StatusModel):
    """Progress of a rebalance."""

    moves_done: Count = 0
    """Partitions that have reached the target of the plan."""
    moves_total: Count = 0
    """Partitions that the plan changes."""
    bytes_done: Count = 0
    """Bytes copied, as far as the sizes of partitions are known."""
    bytes_total: Count = 0
    """Total bytes to copy."""
    percentage: Annotated[int, Field(ge=0, le=100)] = 0
    """Percentage of the bytes, or of the moves if nothing has to be copied. 100 only when everything is done."""
    started_at: Timestamp | None = None
    """Start of the rebalance."""
    expected_at: Timestamp | None = None
    """Expected end at the rate measured since the start.

    Absent until a rate is measured, and once the expected time has passed.
    """

    @classmethod
    def of(
        cls,
        *,
        moves: tuple[int, int],
        bytes_: tuple[int, int] = (0, 0),
        started_at: datetime | None = None,
        expected_at: datetime | None = None,
    ) -> Progress:
        """Compute the progress from (done, total) pairs."""
        done, total = bytes_ if bytes_[1] else moves
        finished = moves[0] >= moves[1]
        return cls(
            moves_done=moves[0],
            moves_total=moves[1],
            bytes_done=bytes_[0],
            bytes_total=bytes_[1],
            percentage=100 if finished else min(99, 100 * done // max(total, 1)),
            started_at=None if started_at is None else timestamp(started_at),
            expected_at=None if expected_at is None else timestamp(expected_at),
        )


def timestamp(moment: datetime) -> str:
    """Format a time like Kubernetes: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """Parse the output of `timestamp`."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def projected(started: str, now: str, *, done: int, left: int) -> str:
    """Return the expected end if the rate since the start stays the same."""
    moment = parse_timestamp(now)
    needed = (moment - parse_timestamp(started)) * left / done
    return timestamp(moment + max(needed, timedelta(seconds=1)))


def unless_past(moment: str | None, now: str) -> str | None:
    """Return an expected time, or None once it has passed."""
    return moment if moment is not None and moment > now else None


def condition(
    kind: ConditionType,
    holds: bool | None,
    reason: Reason,
    message: str = "",
    *,
    now: str,
    generation: int,
) -> Condition:
    """Return a condition; `holds` is None if its status is unknown."""
    return Condition(
        type=kind,
        status="Unknown" if holds is None else "True" if holds else "False",
        reason=reason.value,
        message=message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 3]}...",
        last_transition_time=now,
        observed_generation=generation,
    )


def merge_conditions(old: Iterable[Condition], new: Iterable[Condition]) -> tuple[Condition, ...]:
    """Replace conditions by type; keep `lastTransitionTime` where the status is unchanged, and the order."""
    merged = {before.type: before for before in old}
    for now in new:
        before = merged.get(now.type)
        stays = before is not None and before.status == now.status
        time = {"last_transition_time": before.last_transition_time} if before is not None and stays else {}
        merged[now.type] = now.model_copy(update=time)
    return tuple(merged.values())


def condition_of(conditions: Iterable[Condition], kind: ConditionType) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((entry for entry in conditions if entry.type == kind), None)


def readable_at(version: int, conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions that every operator of a StoreCluster of this cluster version can read."""
    known = supports(version, Feature.CONDITION_TYPES)
    return tuple(entry for entry in conditions if known or entry.type in FIRST_TYPES)


def with_kstatus(conditions: Iterable[Condition], *, now: str) -> tuple[Condition, ...]:
    """Return the conditions with the derived Reconciling and Stalled."""
    known = tuple(conditions)
    stalled = _stalled(known)
    reconciling = None if stalled is not None else _reconciling(known)
    derived = [_derived("Reconciling", reconciling, known, now=now), _derived("Stalled", stalled, known, now=now)]
    return merge_conditions(known, derived)


def _derived(kind: ConditionType, cause: Condition | None, known: tuple[Condition, ...], *, now: str) -> Condition:
    """Return a condition that is True for the reason of `cause`, or False if there is no cause."""
    if cause is not None:
        return cause.model_copy(update={"type": kind, "status": "True", "last_transition_time": now})
    generation = max((entry.observed_generation for entry in known), default=0)
    return condition(kind, False, Reason.AS_EXPECTED, now=now, generation=generation)


def _stalled(conditions: tuple[Condition, ...]) -> Condition | None:
    """Return the condition that explains why the object needs an intervention to become Ready."""
    ready, degraded = condition_of(conditions, "Ready"), condition_of(conditions, "Degraded")
    if ready is None or ready.status == "True":
        return None
    causes = (degraded, ready) if degraded is not None and degraded.status == "True" else (ready,)
    return next((cause for cause in causes if cause.reason in STALLING), None)


def _reconciling(conditions: tuple[Condition, ...]) -> Condition | None:
    """Return the condition that explains what is in progress or awaited."""
    ready, progressing = condition_of(conditions, "Ready"), condition_of(conditions, "Progressing")
    balanced = condition_of(conditions, "Balanced")
    if progressing is not None and progressing.status == "True":
        return progressing
    if ready is not None and ready.status != "True":
        return ready
    return balanced if balanced is not None and balanced.status == "False" else None

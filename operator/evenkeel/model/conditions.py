"""Conditions: what is true of an object now, in the form `kubectl wait` and Argo CD understand.

A condition keeps its `lastTransitionTime` for as long as its status stays the same, whatever happens to reason and
message, and says which generation of the spec it speaks of: a `Ready` that has not seen the newest spec says so.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from evenkeel.model.base import Count, StatusModel

__all__ = [
    "Condition",
    "ConditionType",
    "Conditions",
    "Progress",
    "Reason",
    "Timestamp",
    "condition",
    "merge_conditions",
    "parse_timestamp",
    "projected",
    "timestamp",
]

ConditionType = Literal["Ready", "Progressing", "Balanced", "Degraded", "Accepted", "Approved"]
"""Ready, Progressing, Balanced and Degraded on everything that runs; Accepted and Approved on what a user proposes."""

_LONGEST_MESSAGE = 4096

Timestamp = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]


class Reason(enum.StrEnum):
    """Why a condition holds: one word for programs; the message has the details."""

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
    MALFORMED_RECORD = "MalformedRecord"
    INTERNAL_ERROR = "InternalError"
    STORES_NOT_READY = "StoresNotReady"
    STORES_LOST = "StoresLost"
    QUORUM_LOST = "QuorumLost"
    CATCH_UP_FAILING = "CatchUpFailing"
    REPLICA_DAMAGED = "ReplicaDamaged"
    VOLUME_UNBOUND = "VolumeUnbound"
    CERTIFICATE_MISSING = "CertificateMissing"
    TABLES_REMAIN = "TablesRemain"
    FORBIDDEN = "Forbidden"
    API_REFUSED = "ApiRefused"


class Condition(StatusModel):
    """One condition; at most one of each type per object."""

    type: ConditionType
    """What it is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?$")]
    """One CamelCase word for programs."""
    message: Annotated[str, Field(max_length=_LONGEST_MESSAGE)] = ""
    """A sentence for people."""
    last_transition_time: Timestamp
    """When `status` last changed."""
    observed_generation: Count = 0
    """The `metadata.generation` it speaks of."""


Conditions = Annotated[
    tuple[Condition, ...],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


class Progress(StatusModel):
    """How far a rebalance is."""

    moves_done: Count = 0
    moves_total: Count = 0
    bytes_done: Count = 0
    bytes_total: Count = 0
    percentage: Annotated[int, Field(ge=0, le=100)] = 0
    """Of the bytes, or of the moves where nothing has to be copied. 100 only when all is done."""
    started_at: Timestamp | None = None
    expected_at: Timestamp | None = None
    """When it will be done at the present rate; absent while no rate is known."""

    @classmethod
    def of(
        cls,
        *,
        moves: tuple[int, int],
        bytes_: tuple[int, int] = (0, 0),
        started_at: datetime | None = None,
        expected_at: datetime | None = None,
    ) -> Progress:
        """From (done, total) pairs; the percentage follows."""
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
    """A moment as Kubernetes writes it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """The moment that `timestamp` wrote."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def projected(started: str, now: str, *, done: int, left: int) -> str:
    """When all is done, if what is left takes as long as what was done since it started."""
    moment = parse_timestamp(now)
    needed = (moment - parse_timestamp(started)) * left / done
    return timestamp(moment + max(needed, timedelta(seconds=1)))


def condition(
    kind: ConditionType,
    holds: bool | None,
    reason: Reason,
    message: str = "",
    *,
    now: str,
    generation: int,
) -> Condition:
    """A condition as it is at the moment `now`; `holds` is None where nobody can tell."""
    return Condition(
        type=kind,
        status="Unknown" if holds is None else "True" if holds else "False",
        reason=reason.value,
        message=message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 3]}...",
        last_transition_time=now,
        observed_generation=generation,
    )


def merge_conditions(old: Iterable[Condition], new: Iterable[Condition]) -> tuple[Condition, ...]:
    """Replace by type, keeping `lastTransitionTime` where the status is the same; in the order of first appearance."""
    merged = {before.type: before for before in old}
    for now in new:
        before = merged.get(now.type)
        stays = before is not None and before.status == now.status
        time = {"last_transition_time": before.last_transition_time} if before is not None and stays else {}
        merged[now.type] = now.model_copy(update=time)
    return tuple(merged.values())

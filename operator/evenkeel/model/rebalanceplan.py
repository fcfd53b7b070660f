"""RebalancePlan: a plan as an object, to inspect, to approve, or to preview.

The operator creates one per numbered plan. Under `approval: Manual` the plan waits until `spec.approvedHash` equals
`status.hash`, so that exactly the approved plan is executed. With `dryRun` a user requests a plan that is computed but
never executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from evenkeel.model.conditions import Conditions, Progress
from evenkeel.model.resource_base import (
    ALLOWED,
    MISSING,
    Count,
    DnsName,
    Model,
    ResourceBase,
    StatusModel,
    Violation,
    cel,
    enforce,
    known_values,
)
from evenkeel.model.table import MAX_PARTITIONS, MAX_REPLICAS

__all__ = ["PlanTotals", "PlannedMove", "RebalancePlan", "RebalancePlanSpec", "RebalancePlanStatus", "WhatIf"]

PlanHash = Annotated[
    str,
    Field(
        pattern=r"^[0-9a-f]{8,128}$",
        max_length=128,
        json_schema_extra={ALLOWED: "the plan's hash as `status.hash` shows it"},
    ),
]


class WhatIf(Model):
    """Assumptions of a dry run; everything else is as it is now."""

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Assumed number of replicas."""
    consensus_size: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Assumed number of voters."""
    add_stores: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Number of additional stores."""
    remove_stores: Annotated[
        tuple[DnsName, ...], Field(max_length=1000, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()
    """Stores to leave out."""


class RebalancePlanSpec(Model):
    """The identity of a plan, its approval, or the request for a dry run."""

    table: DnsName
    """Name of the Table, in the same namespace."""
    number: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Number of the plan in the metastore; absent on a dry run."""
    approved_hash: PlanHash | None = None
    """Set it to `status.hash` to approve the plan."""
    dry_run: bool = False
    """Compute the plan without executing it."""
    what_if: WhatIf | None = None
    """Assumptions of a dry run."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel("self.table == oldSelf.table", "table cannot change after creation"),
                cel("self.dryRun == oldSelf.dryRun", "dryRun cannot change after creation"),
                cel("self.dryRun != has(self.number)", "a plan has a number, and a dry run has none", field=".number"),
                cel(
                    "!has(oldSelf.number) || (has(self.number) && self.number == oldSelf.number)",
                    "number cannot change after creation",
                    field=".number",
                ),
                cel("self.dryRun || !has(self.whatIf)", "whatIf needs dryRun: true", field=".whatIf"),
                cel(
                    "has(self.whatIf) == has(oldSelf.whatIf) && (!has(self.whatIf) || self.whatIf == oldSelf.whatIf)",
                    "whatIf cannot change after creation; create another dry run",
                    field=".whatIf",
                ),
                cel("!self.dryRun || !has(self.approvedHash)", "a dry run cannot be approved", field=".approvedHash"),
                cel(
                    "!has(oldSelf.approvedHash)"
                    " || (has(self.approvedHash) && self.approvedHash == oldSelf.approvedHash)",
                    "an approval cannot be changed or revoked",
                    field=".approvedHash",
                ),
            ]
        }
    )

    @model_validator(mode="after")
    def _dry_run_agrees(self) -> Self:
        enforce(self._violations())
        return self

    def _violations(self) -> Iterator[Violation]:
        if self.dry_run and self.number is not None:
            yield Violation(("number",), self.number, "nothing, because a dry run has no number")
        if not self.dry_run and self.number is None:
            yield Violation(("number",), MISSING, "the plan's number, or `dryRun: true`")
        if not self.dry_run and self.what_if is not None:
            yield Violation(("whatIf",), MISSING, "only together with `dryRun: true`")
        if self.dry_run and self.approved_hash is not None:
            yield Violation(("approvedHash",), self.approved_hash, "nothing, because a dry run is never executed")


class PlanTotals(StatusModel):
    """Totals of a plan."""

    partitions: Count = 0
    """Partitions that change."""
    moves: Count = 0
    """Replicas that are moved, added or removed."""
    leader_moves: Count = 0
    """Leaderships that move."""
    bytes: Count | None = None
    """Bytes to copy; absent unless stores report the sizes of all partitions to copy."""
    seconds: Count | None = None
    """Estimated duration at the measured copy rates of the stores, limited by the throttles.

    Absent if neither is known.
    """


class PlannedMove(StatusModel):
    """The move of one replica."""

    partition: Annotated[int, Field(ge=0, le=MAX_PARTITIONS - 1)]
    """Number of the partition."""
    source: Annotated[str, Field(max_length=63)] = ""
    """Store that loses the replica; empty if a replica is added."""
    target: Annotated[str, Field(max_length=63)] = ""
    """Store that gets the replica; empty if a replica is removed."""
    bytes: Count | None = None
    """Bytes to copy; absent if unknown."""
    reason: Annotated[str, Field(max_length=256)] = ""
    """Why the plan has this move."""


class RebalancePlanStatus(StatusModel):
    """The plan and its progress."""

    observed_generation: Count = 0
    """The `metadata.generation` that the status describes."""
    conditions: Conditions = ()
    """Conditions of the plan."""
    state: (
        Annotated[str, known_values("AwaitingApproval", "Running", "Done", "Superseded", "DryRun", "Failed")] | None
    ) = None
    """State of the plan; absent until the operator has observed the object, and while its table is missing."""
    hash: Annotated[str, Field(max_length=128)] = ""
    """Hash of all targets, which an approval names."""
    totals: PlanTotals = PlanTotals()
    """Totals of the plan."""
    progress: Progress | None = None
    """Progress of a running plan."""
    moves: Annotated[tuple[PlannedMove, ...], Field(max_length=100)] = ()
    """The first 100 moves with their reasons."""


class RebalancePlan(ResourceBase):
    """A rebalance plan of a table."""

    NAME_LENGTH: ClassVar[int] = 100

    kind: Literal["RebalancePlan"] = "RebalancePlan"
    spec: RebalancePlanSpec
    status: RebalancePlanStatus | None = None

"""RebalancePlan: a plan as an object, to look at, to approve, or to ask what would happen.

The operator writes one per numbered plan. Under `approval: Manual` it waits until `spec.approvedHash` equals
`status.hash`, so that what is carried out is what was approved. With `dryRun` a user asks for a plan that is computed
and shown, and never carried out.
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
    """Changes to imagine; everything else is as it is now."""

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    consensus_size: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    add_stores: Annotated[int, Field(ge=0, le=10_000)] = 0
    """So many stores more."""
    remove_stores: Annotated[
        tuple[DnsName, ...], Field(max_length=1000, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()
    """Without these stores."""


class RebalancePlanSpec(Model):
    """What is asked for."""

    table: DnsName
    """The Table, in the same namespace."""
    number: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """The plan's number in the metastore; absent on a dry run."""
    approved_hash: PlanHash | None = None
    """Set it to `status.hash` to approve the plan."""
    dry_run: bool = False
    """Compute and show; change nothing."""
    what_if: WhatIf | None = None
    """For dry runs: what to imagine."""

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
                    "whatIf cannot change after creation: make another dry run",
                    field=".whatIf",
                ),
                cel("!self.dryRun || !has(self.approvedHash)", "a dry run cannot be approved", field=".approvedHash"),
                cel(
                    "!has(oldSelf.approvedHash)"
                    " || (has(self.approvedHash) && self.approvedHash == oldSelf.approvedHash)",
                    "an approval cannot be changed or taken back",
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
            yield Violation(("approvedHash",), self.approved_hash, "nothing, because a dry run is never carried out")


class PlanTotals(StatusModel):
    """The plan in numbers."""

    partitions: Count = 0
    """Partitions that change."""
    moves: Count = 0
    """Replicas that are copied, added or removed."""
    leader_moves: Count = 0
    bytes: Count | None = None
    """Bytes to copy; absent unless stores report the sizes of all partitions that are copied."""
    seconds: Count | None = None
    """How long copying takes at the rates measured on the stores, at most those of the throttles.

    Absent where neither is known.
    """


class PlannedMove(StatusModel):
    """One replica's way."""

    partition: Annotated[int, Field(ge=0, le=MAX_PARTITIONS - 1)]
    source: Annotated[str, Field(max_length=63)] = ""
    """Empty where a replica is added."""
    target: Annotated[str, Field(max_length=63)] = ""
    """Empty where a replica is removed."""
    bytes: Count | None = None
    """Bytes to copy; absent where that is not known."""
    reason: Annotated[str, Field(max_length=256)] = ""


class RebalancePlanStatus(StatusModel):
    """The plan."""

    observed_generation: Count = 0
    """The `metadata.generation` this status speaks of."""
    conditions: Conditions = ()
    state: (
        Annotated[str, known_values("AwaitingApproval", "Running", "Done", "Superseded", "DryRun", "Failed")] | None
    ) = None
    """Absent while there is no plan: the operator has not seen the object yet, or its table is missing."""
    hash: Annotated[str, Field(max_length=128)] = ""
    """Of all targets: another plan has another hash."""
    totals: PlanTotals = PlanTotals()
    progress: Progress | None = None
    moves: Annotated[tuple[PlannedMove, ...], Field(max_length=100)] = ()
    """The first 100 moves with their reasons."""


class RebalancePlan(ResourceBase):
    """One plan of one table."""

    NAME_LENGTH: ClassVar[int] = 100

    kind: Literal["RebalancePlan"] = "RebalancePlan"
    spec: RebalancePlanSpec
    status: RebalancePlanStatus | None = None

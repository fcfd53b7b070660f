"""PartitionAssignment: a slice of up to 64 partitions of a table, like an EndpointSlice.

A user writes `spec` if the mode of the Table needs it: preference lists under SemiAuto, exact sets under Customized.
The operator writes `status` from the metastore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from evenkeel.model.conditions import Conditions
from evenkeel.model.resource_base import (
    DNS_LABEL,
    Count,
    DnsName,
    Model,
    ObjectMeta,
    ResourceBase,
    StatusModel,
    Violation,
    cel,
    enforce,
    known_values,
)
from evenkeel.model.table import MAX_PARTITIONS, MAX_REPLICAS
from evenkeel.model.views import SLICE, Assignment, Choice, slice_name

__all__ = [
    "AssignedPartition",
    "PartitionAssignment",
    "PartitionAssignmentSpec",
    "PartitionAssignmentStatus",
    "PartitionStatus",
    "PeerStatus",
    "choices",
    "slices",
]

Partition = Annotated[int, Field(ge=0, le=MAX_PARTITIONS - 1)]
StoreName = Annotated[str, Field(pattern=DNS_LABEL, min_length=1, max_length=63)]


class AssignedPartition(Model):
    """The desired stores of one partition."""

    partition: Partition
    """Number of the partition."""
    stores: Annotated[
        tuple[DnsName, ...],
        Field(min_length=1, max_length=MAX_REPLICAS, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ]
    """Stores in order of preference: the first `consensusSize` are voters, the first live one leads."""
    leader: DnsName | None = None
    """The preferred leader. Default: the first of `stores`."""

    @model_validator(mode="after")
    def _stores_agree(self) -> Self:
        enforce(self._violations())
        return self

    def _violations(self) -> Iterator[Violation]:
        for i, store in enumerate(self.stores):
            if store in self.stores[:i]:
                yield Violation(("stores", i), store, "each store once")
        if self.leader is not None and self.leader not in self.stores:
            yield Violation(("leader",), self.leader, f"one of the partition's stores ({', '.join(self.stores)})")


class PartitionAssignmentSpec(Model):
    """The desired state of a PartitionAssignment."""

    table: DnsName
    """Name of the Table, in the same namespace."""
    from_: Annotated[int, Field(alias="from", ge=0, le=MAX_PARTITIONS - 1, multiple_of=SLICE)]
    """First partition of the slice, a multiple of 64."""
    partitions: Annotated[
        tuple[AssignedPartition, ...],
        Field(
            max_length=SLICE,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["partition"]},
        ),
    ] = ()
    """Desired stores by partition. Omitted partitions stay where they are."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel("self.table == oldSelf.table", "table cannot change after creation"),
                cel("self.from == oldSelf.from", "from cannot change after creation"),
                cel(
                    f"self.partitions.all(p, p.partition >= self.from && p.partition < self.from + {SLICE})",
                    f"the slice has the partitions from `from` to `from` + {SLICE - 1}",
                    field=".partitions",
                ),
                cel(
                    "self.partitions.all(p, !has(p.leader) || p.leader in p.stores)",
                    "leader must be one of the partition's stores",
                    field=".partitions",
                ),
            ]
        }
    )

    @model_validator(mode="after")
    def _partitions_fit(self) -> Self:
        enforce(self._violations())
        return self

    def _violations(self) -> Iterator[Violation]:
        seen: set[int] = set()
        for i, entry in enumerate(self.partitions):
            path = ("partitions", i, "partition")
            if not self.from_ <= entry.partition < self.from_ + SLICE:
                yield Violation(path, entry.partition, f"{self.from_} to {self.from_ + SLICE - 1}, the slice at `from`")
            elif entry.partition in seen:
                yield Violation(path, entry.partition, "each partition once")
            seen.add(entry.partition)


class PeerStatus(StatusModel):
    """A replica of a partition."""

    store: StoreName
    """Store that holds the replica."""
    role: Annotated[str, known_values("Voter", "Learner")]
    """Raft role."""
    replica: Count = 0
    """Id of the replica; a replica that is added again gets a new id."""


Peers = Annotated[tuple[PeerStatus, ...], Field(max_length=2 * MAX_REPLICAS)]


class PartitionStatus(StatusModel):
    """The state of one partition in the metastore."""

    partition: Partition
    """Number of the partition."""
    stable: Peers = ()
    """The applied configuration."""
    pending: Annotated[tuple[Peers, ...], Field(max_length=16)] = ()
    """Configurations still to apply, in order; the first is in progress."""
    planned: Peers = ()
    """The target after `pending`."""
    leader: Annotated[str, Field(max_length=63)] = ""
    """Store that leads; empty if there is no leader."""
    term: Count = 0
    """Raft term of the leader."""
    stage: Annotated[str, known_values("Stable", "CatchingUp", "Locked", "Waiting", "Leaderless")] = "Stable"
    """Stage of the configuration change."""
    progress: Annotated[int, Field(ge=0, le=100)] = 100
    """Percentage of the data copied to new replicas."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """Why the partition moves, or why it does not."""


class PartitionAssignmentStatus(StatusModel):
    """The observed state of a PartitionAssignment."""

    observed_generation: Count = 0
    """The `metadata.generation` that the status describes."""
    conditions: Conditions = ()
    """Conditions of the PartitionAssignment."""
    partitions: Annotated[
        tuple[PartitionStatus, ...],
        Field(
            max_length=SLICE,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["partition"]},
        ),
    ] = ()
    """Partitions of the slice."""
    moving: Count = 0
    """Partitions whose peers are changing."""
    leaderless: Count = 0
    """Partitions without a leader."""


class PartitionAssignment(ResourceBase):
    """Desired and observed placement of up to 64 partitions of a table."""

    NAME_LENGTH: ClassVar[int] = 70

    kind: Literal["PartitionAssignment"] = "PartitionAssignment"
    spec: PartitionAssignmentSpec
    status: PartitionAssignmentStatus | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel(
                    "self.metadata.name.startsWith(self.spec.table + '-') && "
                    f"int(self.metadata.name.substring(size(self.spec.table) + 1)) == self.spec.from / {SLICE}",
                    f"the name must be <table>-<from / {SLICE}>",
                )
            ]
        }
    )

    @model_validator(mode="after")
    def _named_after_slice(self) -> Self:
        name = slice_name(self.spec.table, self.spec.from_)
        if self.metadata.name != name:
            allowed = f"{name}, which is <table>-<from / {SLICE}>"
            enforce([Violation(("metadata", "name"), self.metadata.name, allowed)])
        return self


def choices(assignments: Iterable[PartitionAssignment]) -> dict[int, Choice]:
    """Return the users' choices by partition, for the rebalancers of SemiAuto and Customized."""
    return {
        entry.partition: Choice(stores=entry.stores, leader=entry.leader)
        for assignment in assignments
        for entry in assignment.spec.partitions
    }


def slices(table: str, assignment: Assignment, *, namespace: str = "default") -> Iterator[PartitionAssignment]:
    """Yield the PartitionAssignments that describe `assignment`, to create them or to switch a table to Customized."""
    for first in range(0, assignment.partitions, SLICE):
        partitions = tuple(
            AssignedPartition(partition=p, stores=assignment.stores_of(p))
            for p in range(first, min(first + SLICE, assignment.partitions))
        )
        yield PartitionAssignment(
            metadata=ObjectMeta(name=slice_name(table, first), namespace=namespace),
            spec=PartitionAssignmentSpec(table=table, from_=first, partitions=partitions),
        )

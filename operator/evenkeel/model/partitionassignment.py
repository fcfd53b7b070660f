"""PartitionAssignment: one slice of up to 64 partitions of a table, like an EndpointSlice.

`spec` is the user's word where the Table's mode asks for it: preference lists under SemiAuto, exact sets under
Customized. `status` is what the metastore says, written by the operator alone.
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
    """The user's word on one partition."""

    partition: Partition
    stores: Annotated[
        tuple[DnsName, ...],
        Field(min_length=1, max_length=MAX_REPLICAS, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ]
    """Stores in order of preference: the first `consensusSize` vote, the first that lives leads."""
    leader: DnsName | None = None
    """The store that should lead; the first of `stores` where it is left out."""

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
    """What the user asks for."""

    table: DnsName
    """The Table, in the same namespace."""
    from_: Annotated[int, Field(alias="from", ge=0, le=MAX_PARTITIONS - 1, multiple_of=SLICE)]
    """First partition of the slice, a multiple of 64."""
    partitions: Annotated[
        tuple[AssignedPartition, ...],
        Field(
            max_length=SLICE,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["partition"]},
        ),
    ] = ()
    """Partitions that are left out stay where they are."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel("self.table == oldSelf.table", "table cannot change after creation"),
                cel("self.from == oldSelf.from", "from cannot change after creation"),
                cel(
                    f"self.partitions.all(p, p.partition >= self.from && p.partition < self.from + {SLICE})",
                    f"the slice holds the partitions from `from` to `from` + {SLICE - 1}",
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
    """One replica."""

    store: StoreName
    role: Annotated[str, known_values("Voter", "Learner")]
    replica: Count = 0
    """Its id, unique per addition."""


Peers = Annotated[tuple[PeerStatus, ...], Field(max_length=2 * MAX_REPLICAS)]


class PartitionStatus(StatusModel):
    """One partition as the metastore has it."""

    partition: Partition
    stable: Peers = ()
    """The configuration that is applied."""
    pending: Annotated[tuple[Peers, ...], Field(max_length=16)] = ()
    """Configurations still to apply, in order; the first is in progress."""
    planned: Peers = ()
    """The target that follows."""
    leader: Annotated[str, Field(max_length=63)] = ""
    """The store that leads; empty where nobody does."""
    term: Count = 0
    stage: Annotated[str, known_values("Stable", "CatchingUp", "Locked", "Waiting", "Leaderless")] = "Stable"
    """How far a change of its peers is."""
    progress: Annotated[int, Field(ge=0, le=100)] = 100
    """Per cent of the copying that is done."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """Why it moves, or why it does not."""


class PartitionAssignmentStatus(StatusModel):
    """What is."""

    observed_generation: Count = 0
    """The `metadata.generation` this status speaks of."""
    conditions: Conditions = ()
    partitions: Annotated[
        tuple[PartitionStatus, ...],
        Field(
            max_length=SLICE,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["partition"]},
        ),
    ] = ()
    moving: Count = 0
    leaderless: Count = 0


class PartitionAssignment(ResourceBase):
    """Where up to 64 partitions of a table are, and where the user wants them."""

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
    """What users said, by partition, for the rebalancers of SemiAuto and Customized."""
    return {
        entry.partition: Choice(stores=entry.stores, leader=entry.leader)
        for assignment in assignments
        for entry in assignment.spec.partitions
    }


def slices(table: str, assignment: Assignment, *, namespace: str = "default") -> Iterator[PartitionAssignment]:
    """The objects that say exactly what `assignment` does, for the operator and for going over to Customized."""
    for first in range(0, assignment.partitions, SLICE):
        partitions = tuple(
            AssignedPartition(partition=p, stores=assignment.stores_of(p))
            for p in range(first, min(first + SLICE, assignment.partitions))
        )
        yield PartitionAssignment(
            metadata=ObjectMeta(name=slice_name(table, first), namespace=namespace),
            spec=PartitionAssignmentSpec(table=table, from_=first, partitions=partitions),
        )

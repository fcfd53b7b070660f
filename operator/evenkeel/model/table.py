"""Table: partitions, replicas, schema, and how and when replicas may move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from evenkeel.model.columns import Schema
from evenkeel.model.conditions import Conditions, Progress, Timestamp
from evenkeel.model.quantities import Duration, Rate
from evenkeel.model.resource_base import (
    ALLOWED,
    Count,
    DnsName,
    Labels,
    Model,
    ResourceBase,
    StatusModel,
    Violation,
    cel,
    enforce,
)
from evenkeel.model.views import Mode, Placement, TableView

__all__ = [
    "BUNDLED_CONFIG",
    "DEFAULT_UNDELETE_FOR",
    "MAX_PARTITIONS",
    "MAX_REPLICAS",
    "RebalancerSpec",
    "StuckPartition",
    "Table",
    "TableSpec",
    "TableStatus",
]

DEFAULT_UNDELETE_FOR = Duration("24h")
"""A day: a mistake is usually noticed on the next morning, and disks are not full of deleted tables for longer."""
MAX_PARTITIONS = 1_000_000
MAX_REPLICAS = 99

BUNDLED_CONFIG: dict[str, frozenset[str]] = {
    "balanced": frozenset(),
    "rendezvous": frozenset({"group"}),
    "mod": frozenset(),
    "pinned": frozenset(),
}
"""The rebalancers FullAuto can name, and the `config` keys each of them understands."""

CLASS_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*"
_BUNDLED_NAMES = ", ".join(BUNDLED_CONFIG)


class RebalancerSpec(Model):
    """Who decides where replicas and leaders go."""

    mode: Mode = "FullAuto"
    """FullAuto: a bundled rebalancer. SemiAuto: preference lists. Customized: exact sets. UserDefined: your class."""
    class_name: Annotated[
        str | None,
        Field(
            alias="class",
            max_length=253,
            pattern=f"^({'|'.join(BUNDLED_CONFIG)}|{CLASS_PATTERN})$",
            json_schema_extra={ALLOWED: f"{_BUNDLED_NAMES}, or package.module:Name under UserDefined"},
        ),
    ] = None
    """Under FullAuto a bundled rebalancer (balanced where it is left out), under UserDefined `package.module:Name`."""
    config: dict[str, Any] = Field(
        default_factory=dict, max_length=256, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}
    )
    """Handed to the rebalancer as it is."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel(
                    "self.mode == 'UserDefined' ? has(self.class) && self.class.contains(':') : true",
                    "mode UserDefined needs class: package.module:Name",
                    field=".class",
                ),
                cel(
                    "self.mode == 'FullAuto' ? !has(self.class) || !self.class.contains(':') : true",
                    f"under FullAuto class is one of {_BUNDLED_NAMES}; an own class needs mode UserDefined",
                    field=".class",
                ),
                cel(
                    "self.mode in ['SemiAuto', 'Customized'] ? !has(self.class) : true",
                    "under SemiAuto and Customized PartitionAssignments decide; there is no class",
                    field=".class",
                ),
            ]
        }
    )

    @model_validator(mode="after")
    def _class_fits(self) -> Self:
        enforce(self._violations())
        return self

    def _violations(self) -> Iterator[Violation]:
        own = self.class_name is not None and ":" in self.class_name
        if self.mode == "UserDefined" and not own:
            yield Violation(("class",), self.class_name, "package.module:Name, because mode is UserDefined")
        elif self.mode == "FullAuto" and own:
            allowed = f"one of {_BUNDLED_NAMES}; an own class needs `mode: UserDefined`"
            yield Violation(("class",), self.class_name, allowed)
        elif self.mode in ("SemiAuto", "Customized") and self.class_name is not None:
            allowed = f"nothing, because under {self.mode} your PartitionAssignments decide"
            yield Violation(("class",), self.class_name, allowed)
        elif self.mode == "FullAuto":
            yield from self._unknown_config(self.class_name or "balanced")

    def _unknown_config(self, name: str) -> Iterator[Violation]:
        known = BUNDLED_CONFIG[name]
        for key in sorted(set(self.config) - known):
            allowed = f"only the keys {', '.join(sorted(known))}" if known else "nothing"
            yield Violation(("config", key), self.config[key], f"{allowed} ({name} takes no such key)")


class PlacementSpec(Model):
    """Where replicas may go."""

    zone_spread: bool = True
    """Whether the replicas of a partition are spread over zones as evenly as zones allow."""
    store_selector: Labels = Field(default_factory=dict)
    """Only stores that carry all of these labels."""
    max_per_store: Annotated[int, Field(ge=1, le=MAX_PARTITIONS)] | None = None
    """Most replicas of this table on one store; unlimited where it is left out."""


class MovementSpec(Model):
    """How replicas may move."""

    max_concurrent: Annotated[int, Field(ge=1, le=10_000)] = 16
    """Most partitions of this table whose peers change at the same time."""
    bytes_per_second: Rate | None = None
    """Most bytes of this table a store sends or receives for moves, within the StoreCluster's throttle."""
    lost_after: Duration = Duration("10m")
    """How long a store must be gone before its replicas are made anew elsewhere."""
    retarget: Literal["Adjust", "Cancel", "Queue"] = "Adjust"
    """What a new target does to a move still copying: change it, cancel it, or wait for it."""


class ChangesSpec(Model):
    """The change table: every write in order, for streaming readers."""

    enabled: bool = True
    """False stops keeping changes, without taking the block out."""
    retention: Duration = Duration("24h")
    """How long changes are kept."""


class TableSpec(Model):
    """What the user asks for."""

    store_cluster: DnsName
    """The StoreCluster, in the same namespace, that holds the table."""
    partitions: Annotated[int, Field(ge=1, le=MAX_PARTITIONS)]
    """Number of partitions; each is one raft group. It cannot change after creation."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 3
    """Copies of each partition; `kubectl scale` changes it."""
    consensus_size: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """How many replicas vote, an odd number; the rest are learners. Default: the largest odd number <= replicas."""
    table_schema: Annotated[Schema, Field(alias="schema")]
    changes: ChangesSpec | None = None
    """Keep a change table; none is kept where this is left out."""
    rebalancer: RebalancerSpec = RebalancerSpec()
    placement: PlacementSpec = PlacementSpec()
    movement: MovementSpec = MovementSpec()
    approval: Literal["Auto", "Manual"] = "Auto"
    """Manual: a plan waits until its RebalancePlan is approved by its hash."""
    paused: bool = False
    """True stops new plans; moves under way are finished."""
    deletion_policy: Literal["Delete", "Retain"] = "Delete"
    """What becomes of the data when the Table is deleted. Delete: it is removed after `undeleteFor`. Retain: it stays
    until somebody purges it."""
    undelete_for: Duration = DEFAULT_UNDELETE_FOR
    """How long the data of a deleted Table is kept and can be restored, under `deletionPolicy: Delete`. 0s removes it
    at once."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel("self.partitions == oldSelf.partitions", "partitions cannot change after creation"),
                cel("self.storeCluster == oldSelf.storeCluster", "storeCluster cannot change after creation"),
                cel(
                    "!has(self.consensusSize) || (self.consensusSize % 2 == 1 && self.consensusSize <= self.replicas)",
                    "consensusSize must be odd and at most replicas",
                    field=".consensusSize",
                ),
                cel(
                    "self.partitions == 1 || size(self.schema.primaryKey) > 0 || size(self.schema.partitionBy) > 0",
                    "a table of several partitions needs schema.primaryKey or schema.partitionBy",
                    field=".schema",
                ),
            ]
        }
    )

    @property
    def voters(self) -> int:
        """`consensusSize` with its default applied."""
        return self.consensus_size or self.replicas - (self.replicas + 1) % 2

    @field_validator("consensus_size")
    @classmethod
    def _voters_fit(cls, size: int | None, info: ValidationInfo) -> int | None:
        replicas = info.data.get("replicas")
        if size is not None and replicas is not None and (size % 2 == 0 or size > replicas):
            enforce([Violation((), size, f"an odd number from 1 to {replicas} (replicas)")])
        return size

    @model_validator(mode="after")
    def _rows_find_their_partition(self) -> Self:
        if self.partitions > 1 and not self.table_schema.partition_key:
            allowed = "at least one column here or in primaryKey, to tell which of the partitions a row belongs to"
            enforce([Violation(("schema", "partitionBy"), [], allowed)])
        return self


class StuckPartition(StatusModel):
    """A partition whose change does not get on."""

    partition: Count
    stage: Annotated[str, Field(max_length=64)] = ""
    since: Timestamp | None = None
    reason: Annotated[str, Field(max_length=1024)] = ""


class TableStatus(StatusModel):
    """What is."""

    observed_generation: Count = 0
    """The `metadata.generation` this status speaks of."""
    conditions: Conditions = ()
    partitions: Count = 0
    """Partitions that exist."""
    replicas: Count = 0
    """Copies that every partition has, for the scale subresource."""
    consensus_size: Count = 0
    """Voters that every partition has."""
    moving: Count = 0
    """Partitions whose peers are changing."""
    leaderless: Count = 0
    """Partitions without a leader: neither readable nor writable."""
    under_replicated: Count = 0
    """Partitions with fewer live replicas than asked for."""
    plan: Count = 0
    """Number of the newest plan."""
    plan_hash: Annotated[str, Field(max_length=128)] = ""
    """Its content's hash, which an approval names."""
    progress: Progress | None = None
    """Of the plan that is being carried out."""
    stuck: Annotated[tuple[StuckPartition, ...], Field(max_length=20)] = ()
    """Partitions that do not get on, and why; the first 20."""
    bytes: Count | None = None
    """Size of the data of one copy, in bytes of a snapshot; absent unless stores report the sizes of all partitions.

    A change of less than a quarter is not written by itself.
    """


class Table(ResourceBase):
    """A partitioned, replicated table."""

    NAME_LENGTH: ClassVar[int] = 63

    kind: Literal["Table"] = "Table"
    spec: TableSpec
    status: TableStatus | None = None

    def view(self) -> TableView:
        """The table as planner and rebalancers see it."""
        placement = self.spec.placement
        return TableView(
            name=self.metadata.name,
            partitions=self.spec.partitions,
            replicas=self.spec.replicas,
            consensus_size=self.spec.voters,
            placement=Placement(
                zone_spread=placement.zone_spread,
                store_selector=dict(placement.store_selector),
                max_per_store=placement.max_per_store,
            ),
            config=dict(self.spec.rebalancer.config),
        )

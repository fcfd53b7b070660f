"""Table: partitions, replicas, schema, and the placement and movement of replicas."""

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
"""A day: long enough to notice a mistake the next morning, short enough to free the disks soon."""
MAX_PARTITIONS = 1_000_000
MAX_REPLICAS = 99

BUNDLED_CONFIG: dict[str, frozenset[str]] = {
    "balanced": frozenset(),
    "rendezvous": frozenset({"group"}),
    "mod": frozenset(),
    "pinned": frozenset(),
}
"""The rebalancers of FullAuto, and the `config` keys of each."""

CLASS_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*"
_BUNDLED_NAMES = ", ".join(BUNDLED_CONFIG)


class RebalancerSpec(Model):
    """What decides the placement of replicas and leaders."""

    mode: Mode = "FullAuto"
    """FullAuto: a bundled rebalancer. SemiAuto: preference lists. Customized: exact sets. UserDefined: a class."""
    class_name: Annotated[
        str | None,
        Field(
            alias="class",
            max_length=253,
            pattern=f"^({'|'.join(BUNDLED_CONFIG)}|{CLASS_PATTERN})$",
            json_schema_extra={ALLOWED: f"{_BUNDLED_NAMES}, or package.module:Name under UserDefined"},
        ),
    ] = None
    """Under FullAuto, a bundled rebalancer (default: balanced); under UserDefined, `package.module:Name`."""
    config: dict[str, Any] = Field(
        default_factory=dict, max_length=256, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}
    )
    """Settings of the rebalancer, passed to it unchanged."""

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
                    f"under FullAuto, class is one of {_BUNDLED_NAMES}; your own class needs mode UserDefined",
                    field=".class",
                ),
                cel(
                    "self.mode in ['SemiAuto', 'Customized'] ? !has(self.class) : true",
                    "class is not allowed under SemiAuto and Customized, where PartitionAssignments decide",
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
            allowed = f"one of {_BUNDLED_NAMES}; your own class needs `mode: UserDefined`"
            yield Violation(("class",), self.class_name, allowed)
        elif self.mode in ("SemiAuto", "Customized") and self.class_name is not None:
            allowed = f"nothing, because under {self.mode} PartitionAssignments decide"
            yield Violation(("class",), self.class_name, allowed)
        elif self.mode == "FullAuto":
            yield from self._unknown_config(self.class_name or "balanced")

    def _unknown_config(self, name: str) -> Iterator[Violation]:
        known = BUNDLED_CONFIG[name]
        for key in sorted(set(self.config) - known):
            allowed = f"only the keys {', '.join(sorted(known))}" if known else "nothing"
            yield Violation(("config", key), self.config[key], f"{allowed} (the rebalancer {name} has no such key)")


class PlacementSpec(Model):
    """Which stores may hold replicas."""

    zone_spread: bool = True
    """Whether the replicas of a partition are spread over zones as evenly as possible."""
    store_selector: Labels = Field(default_factory=dict)
    """Use only stores that have all of these labels."""
    max_per_store: Annotated[int, Field(ge=1, le=MAX_PARTITIONS)] | None = None
    """Maximum number of replicas of this table on one store. Default: unlimited."""


class MovementSpec(Model):
    """How replicas move."""

    max_concurrent: Annotated[int, Field(ge=1, le=10_000)] = 16
    """Maximum number of partitions of this table whose peers change at the same time."""
    bytes_per_second: Rate | None = None
    """Maximum rate at which a store sends or receives this table for moves, within the StoreCluster's throttle."""
    lost_after: Duration = Duration("10m")
    """How long a store must be unavailable before its replicas are replaced on other stores."""
    retarget: Literal["Adjust", "Cancel", "Queue"] = "Adjust"
    """Effect of a new target on a move that is still copying: adjust the move, cancel it, or queue the target."""


class ChangesSpec(Model):
    """The change table: all writes in order, for streaming readers."""

    enabled: bool = True
    """Whether changes are recorded."""
    retention: Duration = Duration("24h")
    """How long changes are kept."""


class TableSpec(Model):
    """The desired state of a Table."""

    store_cluster: DnsName
    """Name of the StoreCluster that holds the table, in the same namespace."""
    partitions: Annotated[int, Field(ge=1, le=MAX_PARTITIONS)]
    """Number of partitions; each is a raft group. It cannot change after creation."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 3
    """Number of replicas of each partition, which `kubectl scale` changes."""
    consensus_size: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Number of voters, odd; the other replicas are learners. Default: the largest odd number <= replicas."""
    table_schema: Annotated[Schema, Field(alias="schema")]
    """Columns and keys."""
    changes: ChangesSpec | None = None
    """Record a change table. Default: none."""
    rebalancer: RebalancerSpec = RebalancerSpec()
    """What decides the placement of replicas and leaders."""
    placement: PlacementSpec = PlacementSpec()
    """Which stores may hold replicas."""
    movement: MovementSpec = MovementSpec()
    """How replicas move."""
    approval: Literal["Auto", "Manual"] = "Auto"
    """Manual: a plan starts only after its RebalancePlan is approved."""
    paused: bool = False
    """True stops new plans; moves in progress finish."""
    deletion_policy: Literal["Delete", "Retain"] = "Delete"
    """What happens to the data of a deleted Table. Delete: it is removed after `undeleteFor`. Retain: it is kept until
    it is purged."""
    undelete_for: Duration = DEFAULT_UNDELETE_FOR
    """How long the data of a deleted Table is kept and can be restored, under `deletionPolicy: Delete`. With 0s the
    data is removed at once."""

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
                    "a table with several partitions needs schema.primaryKey or schema.partitionBy",
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
            allowed = "at least one column here or in primaryKey, which selects the partition of a row"
            enforce([Violation(("schema", "partitionBy"), [], allowed)])
        return self


class StuckPartition(StatusModel):
    """A partition whose configuration change is stuck."""

    partition: Count
    """Number of the partition."""
    stage: Annotated[str, Field(max_length=64)] = ""
    """Stage of the configuration change."""
    since: Timestamp | None = None
    """When the change got stuck."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """Why the change is stuck."""


class TableStatus(StatusModel):
    """The observed state of a Table."""

    observed_generation: Count = 0
    """The `metadata.generation` that the status describes."""
    conditions: Conditions = ()
    """Conditions of the Table."""
    partitions: Count = 0
    """Existing partitions."""
    replicas: Count = 0
    """Replicas that every partition has, for the scale subresource."""
    consensus_size: Count = 0
    """Voters that every partition has."""
    moving: Count = 0
    """Partitions whose peers are changing."""
    leaderless: Count = 0
    """Partitions without a leader, which are neither readable nor writable."""
    under_replicated: Count = 0
    """Partitions with fewer live replicas than desired."""
    plan: Count = 0
    """Number of the newest plan."""
    plan_hash: Annotated[str, Field(max_length=128)] = ""
    """Hash of the newest plan, which an approval names."""
    progress: Progress | None = None
    """Progress of the running plan."""
    stuck: Annotated[tuple[StuckPartition, ...], Field(max_length=20)] = ()
    """Partitions whose configuration change is stuck; the first 20."""
    bytes: Count | None = None
    """Size of one copy of the data, as snapshot bytes; absent unless stores report the sizes of all partitions.

    A change of less than a quarter alone does not update the status.
    """


class Table(ResourceBase):
    """A partitioned, replicated table."""

    NAME_LENGTH: ClassVar[int] = 63

    kind: Literal["Table"] = "Table"
    spec: TableSpec
    status: TableStatus | None = None

    def view(self) -> TableView:
        """Return the table as planner and rebalancers see it."""
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

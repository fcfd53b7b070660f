"""StoreCluster: the stores that hold tables; each store is a pod with a table engine and a raft sidecar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

import msgspec
from pydantic import AfterValidator, ConfigDict, Field, model_validator

from evenkeel.model.conditions import Conditions, Timestamp
from evenkeel.model.quantities import Duration, Quantity, Rate
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
    known_values,
)
from evenkeel.model.views import StoreView

__all__ = [
    "ContainerResources",
    "DroppedTable",
    "MetastoreOverride",
    "MetastoreStatus",
    "StoreCluster",
    "StoreClusterSpec",
    "StoreClusterStatus",
    "StoreDrain",
    "StoreOverride",
]

Quantities = Annotated[dict[str, Quantity], Field(max_length=16)]
Replicas = Annotated[int, Field(ge=1, le=1_000_000)]


class Storage(Model):
    """The volume of each store."""

    size: Quantity
    """Size of the volume. It can grow if the storage class allows expansion; it cannot shrink."""
    class_name: DnsName | None = None
    """StorageClass of the volume. Default: the default StorageClass of the Kubernetes cluster."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel(
                    "has(self.className) == has(oldSelf.className)"
                    " && (!has(self.className) || self.className == oldSelf.className)",
                    "className cannot change after creation",
                ),
                cel(
                    "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
                    "a volume cannot shrink",
                    field=".size",
                ),
            ]
        }
    )


class ContainerResources(Model):
    """Resource requests and limits of a container, as in a pod."""

    requests: Quantities = Field(default_factory=dict)
    """Resources that the scheduler reserves."""
    limits: Quantities = Field(default_factory=dict)
    """Resources that the container must not exceed."""


class Resources(Model):
    """Resources of the two containers of a store's pod."""

    store: ContainerResources = ContainerResources()
    """Resources of the table store; its database gets a share of the memory limit."""
    raft: ContainerResources = ContainerResources()
    """Resources of the raft sidecar, which keeps its logs in memory; how much it keeps follows the memory limit."""


class MetastoreOverride(Model):
    """An etcd cluster other than that of the operator."""

    endpoints: Annotated[
        tuple[
            Annotated[
                str,
                Field(
                    pattern=r"^https?://[^/\s]+:[0-9]{1,5}$",
                    max_length=256,
                    json_schema_extra={ALLOWED: "an etcd endpoint such as https://etcd-0.example:2379"},
                ),
            ],
            ...,
        ],
        Field(min_length=1, max_length=16),
    ]
    """Client endpoints of its members. They can change only together with `adoptMetastore`."""
    secret_name: DnsName | None = None
    """Secret with `username` and `password`, with `ca.crt`, `tls.crt` and `tls.key`, or with both."""


class Throttles(Model):
    """Limits of each store for moves, over all tables."""

    bytes_per_second: Rate | None = None
    """Maximum rate at which a store sends or receives data for moves. Default: unlimited."""
    max_concurrent_moves: Annotated[int, Field(ge=1, le=1000)] = 4
    """Maximum number of replicas that a store sends to other stores at the same time."""


def _at_least_a_second(length: Duration) -> Duration:
    if length.seconds < 1:
        enforce([Violation((), str(length), "a duration of at least 1s")])
    return length


Timeout = Annotated[Duration, AfterValidator(_at_least_a_second)]


class FailureHandling(Model):
    """When failures are reported and how they are handled; stores apply changes without a restart."""

    retries_before_degraded: Annotated[int, Field(ge=1, le=1000)] = 6
    """Failed attempts in a row after which a partition counts as stuck and its Table becomes Degraded."""
    longest_retry: Timeout = Duration("30s")
    """Maximum wait between two attempts. The first wait is 200ms and doubles. Retries never end."""
    stalled_after: Timeout = Duration("30s")
    """How long a copy may make no progress before it counts as a failed attempt."""
    step_down_when_stalled: bool = False
    """Whether a leader whose copy is stalled hands over leadership to another voter, which may succeed."""


class StoreOverride(Model):
    """Settings of a single store."""

    name: DnsName
    """Name of the store: `<cluster>-<ordinal>`."""
    zone: DnsName | None = None
    """Zone of the store, for clusters where the operator may not read Nodes."""
    weight: Annotated[float, Field(ge=0, le=1000, strict=False)] = 1.0
    """Share of replicas and leaders relative to other stores; 0 gets none."""
    max_replicas: Replicas | None = None
    """Maximum number of replicas on the store, instead of `maxReplicasPerStore`."""
    labels: Labels = Field(default_factory=dict)
    """Labels that `placement.storeSelector` of a Table matches."""


class StoreClusterSpec(Model):
    """The desired state of a StoreCluster."""

    stores: Annotated[int, Field(ge=1, le=10_000)]
    """Number of stores, which `kubectl scale` changes. Scaling down drains the last stores before it removes them."""
    storage: Storage
    """Volume of each store."""
    resources: Resources = Resources()
    """Resource requests and limits of a store's containers."""
    topology_key: Annotated[str, Field(min_length=1, max_length=253)] = "topology.kubernetes.io/zone"
    """Node label whose value is the zone of a store."""
    metastore: MetastoreOverride | None = None
    """An etcd cluster other than that of the operator."""
    throttles: Throttles = Throttles()
    """Limits for moves; stores apply changes without a restart."""
    failure_handling: FailureHandling = FailureHandling()
    """When failures are reported and how they are handled."""
    max_replicas_per_store: Replicas | None = None
    """Maximum number of replicas of all tables on one store. Default: unlimited."""
    overrides: Annotated[
        tuple[StoreOverride, ...],
        Field(
            max_length=10_000,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """Settings of single stores."""
    client_namespaces: Annotated[
        tuple[DnsName, ...], Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()
    """Further namespaces that get a copy of the Secret `<name>-client`, so that jobs there can mount it."""
    healing: Literal["Auto", "Manual"] = "Auto"
    """Auto rebuilds a replica whose rows differ from the majority; Manual reports it and waits for `verify --heal`."""
    adopt_metastore: (
        Annotated[
            str,
            Field(
                pattern=r"^[0-9a-f]{1,16}(@[0-9]{1,18})?$",
                max_length=64,
                json_schema_extra={ALLOWED: "the id of an etcd cluster as the condition MetastoreMismatch shows it"},
            ),
        ]
        | None
    ) = None
    """A new, emptied or restored etcd cluster to adopt: `<id>` or `<id>@<revision>`. Each value is applied once."""
    paused: bool = False
    """True pauses changes to pods and new plans; running stores keep serving."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel(
                    "has(self.metastore) == has(oldSelf.metastore)"
                    " && (!has(self.metastore) || self.metastore.endpoints == oldSelf.metastore.endpoints"
                    " || has(self.adoptMetastore) && (!has(oldSelf.adoptMetastore)"
                    " || self.adoptMetastore != oldSelf.adoptMetastore))",
                    "the metastore cannot change after creation, except its endpoints together with adoptMetastore",
                    field=".metastore",
                )
            ]
        }
    )

    @model_validator(mode="after")
    def _overrides_differ(self) -> Self:
        enforce(self._violations())
        return self

    def _violations(self) -> Iterator[Violation]:
        for field, names in (
            ("overrides", [override.name for override in self.overrides]),
            ("clientNamespaces", list(self.client_namespaces)),
        ):
            for i, name in enumerate(names):
                if name in names[:i]:
                    yield Violation((field, i), name, "each name once")


class StoreDrain(StatusModel):
    """The drain of a store."""

    store: str
    """Name of the store."""
    replicas_left: Count = 0
    """Replicas still on the store."""
    bytes_left: Count | None = None
    """Bytes of these replicas; absent unless stores report all their sizes."""
    bytes_total: Count | None = None
    """Largest value of `bytesLeft` during the drain."""
    percentage: Annotated[int, Field(ge=0, le=100)] = 0
    """Percentage of the replicas that have left the store."""
    started_at: Timestamp | None = None
    """Start of the drain."""
    expected_at: Timestamp | None = None
    """Expected end at the rate measured since the start.

    Absent until a rate is measured, and once the expected time has passed.
    """
    reason: Annotated[str, Field(max_length=1024)] = ""
    """Why the drain is blocked, if it is."""


class DroppedTable(StatusModel):
    """A deleted Table whose data is kept."""

    table: str
    """Name of the Table."""
    uid: str
    """Uid of the Table, which `undelete` and `purge` refer to."""
    deleted_at: Timestamp
    """When the Table was deleted."""
    kept_until: Timestamp | None = None
    """When the data is removed; absent if it is kept until it is purged."""
    bytes: Count | None = None
    """Size of one copy of the data; absent unless stores report the sizes of all partitions."""
    plan: Count = 0
    """Number of its newest plan."""
    spec: Annotated[str, Field(max_length=16384)] | None = None
    """Spec of the Table as JSON, to restore it after an empty etcd is adopted; absent if it is too long."""


class MetastoreStatus(StatusModel):
    """The etcd cluster in use."""

    cluster_id: Annotated[str, Field(max_length=16)] = ""
    """Id of the etcd cluster in hexadecimal digits."""
    revision: Count = 0
    """A revision that etcd has reached; updated from time to time."""
    went_back: bool | None = None
    """True after etcd was found at an earlier revision. It is then not used until it is adopted."""
    adopted: Annotated[str, Field(max_length=64)] = ""
    """The last value of `spec.adoptMetastore` that was applied."""


class StoreClusterStatus(StatusModel):
    """The observed state of a StoreCluster."""

    observed_generation: Count = 0
    """The `metadata.generation` that the status describes."""
    conditions: Conditions = ()
    """Conditions of the StoreCluster."""
    stores: Count = 0
    """Existing pods."""
    ready_stores: Count = 0
    """Pods whose replicas have caught up."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the pods, for the scale subresource."""
    tables: Count = 0
    """Tables on these stores."""
    replicas: Count = 0
    """Replicas of all tables."""
    zones_from: Annotated[str, known_values("Nodes", "Overrides", "None")] | None = None
    """Source of the stores' zones; with None, replicas cannot be spread over zones."""
    version: Count = 0
    """Cluster version, which all components support. It rises automatically and never falls."""
    supported_version: Count = 0
    """Newest cluster version that the operator and all stores support."""
    metastore: MetastoreStatus | None = None
    """The etcd cluster in use. Nothing is changed in another one until it is adopted."""
    lost: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Unavailable stores; the first 100."""
    drains: Annotated[tuple[StoreDrain, ...], Field(max_length=100)] = ()
    """Draining stores; the first 100."""
    dropped: Annotated[tuple[DroppedTable, ...], Field(max_length=100)] = ()
    """Deleted tables whose data is kept; the newest 100."""


class StoreCluster(ResourceBase):
    """A set of stores that hold tables."""

    NAME_LENGTH: ClassVar[int] = 40

    kind: Literal["StoreCluster"] = "StoreCluster"
    spec: StoreClusterSpec
    status: StoreClusterStatus | None = None

    def overrides(self) -> dict[str, StoreOverride]:
        """Return the overrides by the name of the store."""
        return {override.name: override for override in reversed(self.spec.overrides)}

    def with_overrides(self, store: StoreView, overrides: Mapping[str, StoreOverride]) -> StoreView:
        """Return a discovered store with this cluster's limits and its overrides applied."""
        capacity = self.spec.max_replicas_per_store
        store = msgspec.structs.replace(store, capacity=store.capacity if capacity is None else capacity)
        override = overrides.get(store.name)
        return store if override is None else _overridden(store, override)


def _overridden(store: StoreView, override: StoreOverride) -> StoreView:
    return msgspec.structs.replace(
        store,
        zone=override.zone or store.zone,
        weight=override.weight if "weight" in override.model_fields_set else store.weight,
        capacity=override.max_replicas or store.capacity,
        labels={**store.labels, **override.labels},
    )

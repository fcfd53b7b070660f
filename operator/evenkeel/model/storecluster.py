"""StoreCluster: the pods that hold tables, one store (and one raft sidecar) each."""

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
    """Size of the volume. It can grow, where the storage class allows it, but not shrink."""
    class_name: DnsName | None = None
    """StorageClass; the cluster's default where it is left out."""

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
    """Requests and limits of one container, as in a pod."""

    requests: Quantities = Field(default_factory=dict)
    """What the scheduler sets aside."""
    limits: Quantities = Field(default_factory=dict)
    """What the container may not exceed."""


class Resources(Model):
    """Requests and limits of the two containers of a store's pod."""

    store: ContainerResources = ContainerResources()
    """The table engine; its memory and threads follow the limits."""
    raft: ContainerResources = ContainerResources()
    """The raft sidecar; what it keeps of its logs, which are in memory, follows the limit."""


class MetastoreOverride(Model):
    """An etcd other than the operator's own."""

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
    """Client addresses of its members. They change only together with `adoptMetastore`."""
    secret_name: DnsName | None = None
    """Secret with `username` and `password`, or `ca.crt`, `tls.crt` and `tls.key`, or both."""


class Throttles(Model):
    """Limits for each store, over all tables together."""

    bytes_per_second: Rate | None = None
    """Most bytes a store sends or receives for moves; unlimited where it is left out."""
    max_concurrent_moves: Annotated[int, Field(ge=1, le=1000)] = 4
    """Most replicas a store fills at the same time."""


def _at_least_a_second(length: Duration) -> Duration:
    if length.seconds < 1:
        enforce([Violation((), str(length), "a duration of at least 1s")])
    return length


Patience = Annotated[Duration, AfterValidator(_at_least_a_second)]


class FailureHandling(Model):
    """When a failure is reported, and what is done about it; stores take up changes without a restart."""

    retries_before_degraded: Annotated[int, Field(ge=1, le=1000)] = 6
    """Attempts that fail in a row before the partition counts as stuck and its Table as Degraded."""
    longest_retry: Patience = Duration("30s")
    """Longest wait between two attempts; the first is 200ms, and it doubles. Retries never end."""
    stalled_after: Patience = Duration("30s")
    """How long a replica may be copied without progress before that is reported as a failure."""
    step_down_when_stalled: bool = False
    """True: a leader whose copy makes no progress lets another voter lead, which may do better."""


class StoreOverride(Model):
    """What is particular to one store."""

    name: DnsName
    """The store: `<cluster>-<ordinal>`."""
    zone: DnsName | None = None
    """Its zone, for clusters where the operator may not read Nodes."""
    weight: Annotated[float, Field(ge=0, le=1000, strict=False)] = 1.0
    """Its share of replicas and leaders relative to the others; 0 takes none."""
    max_replicas: Replicas | None = None
    """Most replicas it may hold, in place of `maxReplicasPerStore`."""
    labels: Labels = Field(default_factory=dict)
    """What a Table's `placement.storeSelector` selects by."""


class StoreClusterSpec(Model):
    """What the user asks for."""

    stores: Annotated[int, Field(ge=1, le=10_000)]
    """Number of stores. Fewer than before drains the last ones first; `kubectl scale` changes it."""
    storage: Storage
    resources: Resources = Resources()
    topology_key: Annotated[str, Field(min_length=1, max_length=253)] = "topology.kubernetes.io/zone"
    """Node label whose value is a store's zone."""
    metastore: MetastoreOverride | None = None
    throttles: Throttles = Throttles()
    """Limits for copying; stores take up changes without a restart."""
    failure_handling: FailureHandling = FailureHandling()
    max_replicas_per_store: Replicas | None = None
    """Most replicas of all tables together on one store; unlimited where it is left out."""
    overrides: Annotated[
        tuple[StoreOverride, ...],
        Field(
            max_length=10_000,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """What is particular to single stores."""
    client_namespaces: Annotated[
        tuple[DnsName, ...], Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()
    """Namespaces that also get the Secret `<name>-client`, so that jobs there can mount it."""
    healing: Literal["Auto", "Manual"] = "Auto"
    """Auto builds a replica anew that has other rows than most; Manual only says so, and waits for `verify --heal`."""
    adopt_metastore: (
        Annotated[
            str,
            Field(
                pattern=r"^[0-9a-f]{1,16}(@[0-9]{1,18})?$",
                max_length=64,
                json_schema_extra={ALLOWED: "an etcd cluster's id as the condition MetastoreMismatch shows it"},
            ),
        ]
        | None
    ) = None
    """A new, emptied or restored etcd cluster to use: `<id>` or `<id>@<revision>`. Each value is carried out once."""
    paused: bool = False
    """True stops every change to pods and every new plan; what is running goes on serving."""

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
    """A store that is being emptied."""

    store: str
    replicas_left: Count = 0
    """Replicas that are still to leave it."""
    bytes_left: Count | None = None
    """Their bytes; absent unless stores report the sizes of all of them."""
    bytes_total: Count | None = None
    """The most that was to leave it."""
    percentage: Annotated[int, Field(ge=0, le=100)] = 0
    """Of the replicas, how many have left."""
    started_at: Timestamp | None = None
    """When it was first seen draining."""
    expected_at: Timestamp | None = None
    """When it will be empty at the rate measured since then.

    Absent while nothing was measured, and once the time has passed without progress.
    """
    reason: Annotated[str, Field(max_length=1024)] = ""
    """What holds it up, if anything does."""


class DroppedTable(StatusModel):
    """A deleted Table whose data is kept."""

    table: str
    """The name of the Table."""
    uid: str
    """The uid of the Table, which restoring and purging name."""
    deleted_at: Timestamp
    kept_until: Timestamp | None = None
    """When the data is removed; absent where it stays until it is purged."""
    bytes: Count | None = None
    """Size of one copy of its data; absent unless stores report the sizes of all its partitions."""
    plan: Count = 0
    """Its newest plan."""
    spec: Annotated[str, Field(max_length=16384)] | None = None
    """Its spec as JSON, from which the table comes back where an empty etcd is adopted; absent where it is too long."""


class MetastoreStatus(StatusModel):
    """The etcd that is followed."""

    cluster_id: Annotated[str, Field(max_length=16)] = ""
    """Its cluster id, in hexadecimal digits."""
    revision: Count = 0
    """A revision that it has reached; noted from time to time."""
    went_back: bool | None = None
    """True once it was found at an earlier revision: it is not used again, whatever it reaches, until it is adopted."""
    adopted: Annotated[str, Field(max_length=64)] = ""
    """The value of `spec.adoptMetastore` that was carried out last."""


class StoreClusterStatus(StatusModel):
    """What is."""

    observed_generation: Count = 0
    """The `metadata.generation` this status speaks of."""
    conditions: Conditions = ()
    stores: Count = 0
    """Pods that exist."""
    ready_stores: Count = 0
    """Pods whose replicas are caught up."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the pods, for the scale subresource."""
    tables: Count = 0
    """Tables that live here."""
    replicas: Count = 0
    """Replicas of all tables."""
    zones_from: Annotated[str, known_values("Nodes", "Overrides", "None")] | None = None
    """Where zones come from: None means that replicas cannot be spread over zones."""
    version: Count = 0
    """The cluster version: what all parts of the cluster may write and send. It rises by itself and never falls."""
    supported_version: Count = 0
    """The newest cluster version that the operator and all stores support."""
    metastore: MetastoreStatus | None = None
    """The etcd that is followed; with another one nothing is changed until it is adopted."""
    lost: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Stores without a sign of life, the first 100."""
    drains: Annotated[tuple[StoreDrain, ...], Field(max_length=100)] = ()
    """Stores that are being emptied, the first 100."""
    dropped: Annotated[tuple[DroppedTable, ...], Field(max_length=100)] = ()
    """Deleted tables whose data is kept, the newest 100."""


class StoreCluster(ResourceBase):
    """A set of stores."""

    NAME_LENGTH: ClassVar[int] = 40

    kind: Literal["StoreCluster"] = "StoreCluster"
    spec: StoreClusterSpec
    status: StoreClusterStatus | None = None

    def overrides(self) -> dict[str, StoreOverride]:
        """By store, what is laid over it."""
        return {override.name: override for override in reversed(self.spec.overrides)}

    def with_overrides(self, store: StoreView, overrides: Mapping[str, StoreOverride]) -> StoreView:
        """A discovered store with this cluster's caps and its `overrides()` laid over it."""
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

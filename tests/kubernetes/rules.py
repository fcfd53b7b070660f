"""For every rule of the CRDs: an object that the API server accepts, and one that it rejects.

A rule about changes has also the object `before`. The refused object breaks its rule and no other one, unless a case
says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["CASES", "Case"]

Spec = dict[str, Any]


class Case(NamedTuple):
    """An accepted and a rejected spec, and the message of the rule."""

    kind: str
    message: str
    accepted: Spec
    refused: Spec
    before: Spec | None = None
    refused_name: str | None = None
    """The name of the rejected object, if that breaks the rule."""
    also: tuple[str, ...] = ()
    """Messages of other rules that the rejected object necessarily breaks."""

    @property
    def id(self) -> str:
        """Id of the test."""
        return f"{self.kind}: {self.message}"


ID = {"name": "id", "type": "int64", "nullable": False}
DAY = {"name": "day", "type": "date", "nullable": False}
NOTE = {"name": "note", "type": "string"}


def _table(**spec: Any) -> Spec:
    schema = {"columns": [ID, DAY, NOTE], "primaryKey": ["id", "day"]}
    return {"storeCluster": "main", "partitions": 4, "replicas": 3, "schema": schema, **spec}


def _schema(*columns: Spec, key: tuple[str, ...] = (), by: tuple[str, ...] = (), partitions: int = 4) -> Spec:
    return _table(partitions=partitions, schema={"columns": columns, "primaryKey": key, "partitionBy": by})


def _rebalancer(mode: str, **more: str) -> Spec:
    return _table(rebalancer={"mode": mode, **more})


def _stores(*, storage: Spec | None = None, **spec: Any) -> Spec:
    return {"stores": 3, "storage": {"size": "10Gi", **(storage or {})}, **spec}


def _slice(**spec: Any) -> Spec:
    return {"table": "orders", "from": 0, "partitions": [], **spec}


def _plan(**spec: Any) -> Spec:
    return {"table": "orders", **spec}


def _at(partition: int, *stores: str, **leader: str) -> Spec:
    return {"partition": partition, "stores": stores, **leader}


_QUANTITY = f"a number must be from 0 to {10**18 - 1}"
_RATE = f"a number must be from 1 to {10**18 - 1}"
_NAME = "the name must be <table>-<from / 64>"
HASH, OTHER_HASH = "0123456789abcdef", "fedcba9876543210"
METASTORE = {"endpoints": ["https://etcd.example:2379"]}
OTHER_METASTORE = {"endpoints": ["https://other.example:2379"]}

TABLES = [
    Case(
        "Table",
        "partitions cannot change after creation",
        before=_table(),
        accepted=_table(replicas=5),
        refused=_table(partitions=8),
    ),
    Case(
        "Table",
        "storeCluster cannot change after creation",
        before=_table(),
        accepted=_table(paused=True),
        refused=_table(storeCluster="other"),
    ),
    Case(
        "Table",
        "consensusSize must be odd and at most replicas",
        accepted=_table(replicas=4, consensusSize=3),
        refused=_table(replicas=4, consensusSize=5),
    ),
    Case(
        "Table",
        "consensusSize must be odd and at most replicas",
        accepted=_table(replicas=5, consensusSize=5),
        refused=_table(replicas=5, consensusSize=4),
    ),
    Case(
        "Table",
        "a table with several partitions needs schema.primaryKey or schema.partitionBy",
        accepted=_schema(NOTE, partitions=1),
        refused=_schema(NOTE, partitions=2),
    ),
    Case(
        "Table",
        "primaryKey cannot change after creation",
        before=_schema(ID, DAY, key=("id",), by=("id",)),
        accepted=_schema(ID, DAY, NOTE, key=("id",), by=("id",)),
        refused=_schema(ID, DAY, key=("id", "day"), by=("id",)),
    ),
    Case(
        "Table",
        "partitionBy cannot change after creation",
        before=_schema(ID, DAY, key=("id", "day")),
        accepted=_schema(ID, DAY, key=("id", "day"), by=("id", "day")),
        refused=_schema(ID, DAY, key=("id", "day"), by=("day",)),
    ),
    Case(
        "Table",
        "every column of primaryKey must exist and have `nullable: false`",
        accepted=_schema(ID, NOTE, key=("id",)),
        refused=_schema(ID, NOTE, key=("note",)),
    ),
    Case(
        "Table",
        "partitionBy may only name columns of primaryKey, or any columns if there is no primaryKey",
        accepted=_schema(ID, NOTE, by=("note",)),
        refused=_schema(ID, NOTE, key=("id",), by=("note",)),
    ),
    *(
        Case(
            "Table",
            "columns can only be added at the end; existing columns keep their order",
            before=_schema(ID, NOTE, key=("id",)),
            accepted=_schema(ID, NOTE, {"name": "more", "type": "bool"}, key=("id",)),
            refused=_schema(*columns, key=("id",)),
        )
        for columns in ([ID], [NOTE, ID], [ID, {"name": "more", "type": "bool"}, NOTE], [ID, {**NOTE, "name": "notes"}])
    ),
    Case(
        "Table",
        "type and nullable of a column cannot change after creation",
        before=_schema(ID, NOTE, key=("id",)),
        accepted=_schema(ID, NOTE, {"name": "more", "type": "bytes"}, key=("id",)),
        refused=_schema(ID, {**NOTE, "type": "bytes"}, key=("id",)),
    ),
    Case(
        "Table",
        "mode UserDefined needs class: package.module:Name",
        accepted=_rebalancer("UserDefined", **{"class": "package.module:Name"}),
        refused=_rebalancer("UserDefined"),
    ),
    Case(
        "Table",
        "under FullAuto, class is one of balanced, rendezvous, mod, pinned; your own class needs mode UserDefined",
        accepted=_rebalancer("FullAuto", **{"class": "pinned"}),
        refused=_rebalancer("FullAuto", **{"class": "package.module:Name"}),
    ),
    Case(
        "Table",
        "class is not allowed under SemiAuto and Customized, where PartitionAssignments decide",
        accepted=_rebalancer("SemiAuto"),
        refused=_rebalancer("Customized", **{"class": "pinned"}),
    ),
    Case(
        "Table",
        _RATE,
        accepted=_table(movement={"bytesPerSecond": 1}),
        refused=_table(movement={"bytesPerSecond": 0}),
    ),
]

_METASTORE = "the metastore cannot change after creation, except its endpoints together with adoptMetastore"
STORE_CLUSTERS = [
    Case(
        "StoreCluster",
        _METASTORE,
        before=_stores(metastore=METASTORE),
        accepted=_stores(metastore=METASTORE, maxReplicasPerStore=5),
        refused=_stores(metastore=OTHER_METASTORE),
    ),
    Case(
        "StoreCluster",
        _METASTORE,
        before=_stores(metastore=METASTORE, adoptMetastore="1"),
        accepted=_stores(metastore=OTHER_METASTORE, adoptMetastore="2"),
        refused=_stores(metastore=OTHER_METASTORE, adoptMetastore="1"),
    ),
    Case(
        "StoreCluster",
        _METASTORE,
        before=_stores(metastore=METASTORE),
        accepted=_stores(metastore=OTHER_METASTORE, adoptMetastore="2"),
        refused=_stores(adoptMetastore="2"),
    ),
    Case(
        "StoreCluster",
        "className cannot change after creation",
        before=_stores(),
        accepted=_stores(stores=5),
        refused=_stores(storage={"className": "fast"}),
    ),
    Case(
        "StoreCluster",
        "a volume cannot shrink",
        before=_stores(),
        accepted=_stores(storage={"size": "20G"}),
        refused=_stores(storage={"size": "10G"}),
    ),
    *(
        Case(
            "StoreCluster",
            _QUANTITY,
            accepted=_stores(resources={"store": {"limits": {"memory": 0}}}),
            refused=_stores(resources={"store": {"limits": {"memory": memory}}}),
        )
        for memory in (-1, 10**18)
    ),
    Case(
        "StoreCluster",
        _RATE,
        before=_stores(),
        accepted=_stores(throttles={"bytesPerSecond": "20Mi"}),
        refused=_stores(throttles={"bytesPerSecond": 0}),
    ),
]

ASSIGNMENTS = [
    Case(
        "PartitionAssignment",
        _NAME,
        accepted=_slice(),
        refused=_slice(),
        refused_name="orders-1",
    ),
    Case(
        "PartitionAssignment",
        "table cannot change after creation",
        before=_slice(),
        accepted=_slice(partitions=[_at(1, "main-0")]),
        refused=_slice(table="others"),
        also=(_NAME,),
    ),
    Case(
        "PartitionAssignment",
        "from cannot change after creation",
        before=_slice(),
        accepted=_slice(partitions=[_at(2, "main-0", "main-1")]),
        refused=_slice(**{"from": 64}),
        also=(_NAME,),
    ),
    Case(
        "PartitionAssignment",
        "the slice has the partitions from `from` to `from` + 63",
        accepted=_slice(partitions=[_at(63, "main-0")]),
        refused=_slice(partitions=[_at(64, "main-0")]),
    ),
    Case(
        "PartitionAssignment",
        "leader must be one of the partition's stores",
        accepted=_slice(partitions=[_at(0, "main-0", "main-1", leader="main-1")]),
        refused=_slice(partitions=[_at(0, "main-0", "main-1", leader="main-2")]),
    ),
]

PLANS = [
    Case(
        "RebalancePlan",
        "table cannot change after creation",
        before=_plan(number=1),
        accepted=_plan(number=1, approvedHash=HASH),
        refused=_plan(number=1, table="others"),
    ),
    Case(
        "RebalancePlan",
        "dryRun cannot change after creation",
        before=_plan(dryRun=True),
        accepted=_plan(dryRun=True),
        refused=_plan(dryRun=False, number=1),
    ),
    Case(
        "RebalancePlan",
        "a plan has a number, and a dry run has none",
        accepted=_plan(number=1),
        refused=_plan(),
    ),
    Case(
        "RebalancePlan",
        "number cannot change after creation",
        before=_plan(number=1),
        accepted=_plan(number=1, approvedHash=HASH),
        refused=_plan(number=2),
    ),
    Case(
        "RebalancePlan",
        "whatIf needs dryRun: true",
        accepted=_plan(dryRun=True, whatIf={"addStores": 1}),
        refused=_plan(number=1, whatIf={"addStores": 1}),
    ),
    *(
        Case(
            "RebalancePlan",
            "whatIf cannot change after creation; create another dry run",
            before=_plan(dryRun=True, whatIf={"addStores": 1, "removeStores": ["main-1"]}),
            accepted=_plan(dryRun=True, whatIf={"addStores": 1, "removeStores": ["main-1"]}),
            refused=_plan(dryRun=True, **changed),
        )
        for changed in ({"whatIf": {"addStores": 2, "removeStores": ["main-1"]}}, {"whatIf": {"addStores": 1}}, {})
    ),
    Case(
        "RebalancePlan",
        "a dry run cannot be approved",
        accepted=_plan(dryRun=True),
        refused=_plan(dryRun=True, approvedHash=HASH),
    ),
    Case(
        "RebalancePlan",
        "an approval cannot be changed or revoked",
        before=_plan(number=1, approvedHash=HASH),
        accepted=_plan(number=1, approvedHash=HASH),
        refused=_plan(number=1, approvedHash=OTHER_HASH),
    ),
]

CASES = [*TABLES, *STORE_CLUSTERS, *ASSIGNMENTS, *PLANS]

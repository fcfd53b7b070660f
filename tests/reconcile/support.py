"""A simulated metastore and an operator on it, for the tests of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from evenkeel.metastore.metastore_api import Compare, Delete, Put, Txn
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.model.resource_loading import parse
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.model.views import TableView
from evenkeel.planner import plan as balanced
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.leader_transactions import switch_txn
from evenkeel.protocol.records import StoreRecord, TableRecord, encode
from evenkeel.rebalancers.rebalancer_api import RebalanceResult
from evenkeel.rebalancers.rebalancer_process import Limits
from evenkeel.rebalancers.rebalancer_runner import rebalance
from evenkeel.reconcile.desired_table import DesiredTable
from evenkeel.reconcile.known_stores import read_stores
from evenkeel.reconcile.reconcile_requests import Carry, Commit, Found, Place, Read, Request, Requests
from evenkeel.reconcile.store_states import DRAIN_ANNOTATION, DesiredStores, decide_store_states
from evenkeel.reconcile.table_snapshot import TableSnapshot, read_table
from evenkeel.reconcile.table_steps import Outcome, reconcile_table

KEYS = Keys(namespace="test", store_cluster="main")
TABLE = "orders.1"
PARTITIONS = 70
T = TypeVar("T")


class Killed(Exception):  # noqa: N818 - it is what happens to the operator
    """The operator is killed."""


class Cluster:
    """A simulated metastore and an operator that may be killed at any request."""

    def __init__(self, stores: int = 5) -> None:
        self.metastore = Mvcc()
        self.requests = 0
        self.placements = 0
        self.now = 1000.0
        self.before: Callable[[int], None] = lambda _: None
        self.epoch = self.take_epoch()
        for number in range(stores):
            self.put(KEYS.store(f"s{number}"), StoreRecord(volume=f"v{number}"))

    def take_epoch(self) -> Compare:
        result = self.metastore.txn(Txn(success=(Put(KEYS.epoch, b"{}"),)))
        self.epoch = Compare(KEYS.epoch, "mod", "=", result.revision)
        return self.epoch

    def put(self, key: str, record: object) -> None:
        self.metastore.txn(Txn(success=(Put(key, encode(record)),)))

    def drive(self, requests: Requests[T]) -> T:
        answer: Any = None
        while True:
            try:
                request = requests.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            answer = self.answer(request)

    def answer(self, request: Request) -> Any:
        match request:
            case Read(prefixes):
                kvs = {kv.key: kv for prefix in prefixes for kv in self.metastore.range(prefix).kvs}
                return Found(self.metastore.revision, kvs)
            case Commit(txn):
                return self.run(txn)
            case Carry(run):
                while (batch := run.next_batch()) is not None:
                    run.on_result(batch, self.run(batch.txn))
                return None
            case Place():
                return self.place(request)

    def place(self, request: Place) -> RebalanceResult:
        self.placements += 1
        if request.mode == "FullAuto":
            return RebalanceResult(
                assignment=balanced(request.table, request.previous, request.stores, request.current), context=None
            )
        return asyncio.run(
            rebalance(
                request.table,
                mode=request.mode,  # type: ignore[arg-type]
                class_name=request.class_name,
                previous=request.previous,
                stores=request.stores,
                choices=request.choices,
                context=request.context,
                limits=Limits(path=(str(Path(__file__).parent),)),
            )
        )

    def run(self, txn: Txn) -> Any:
        self.requests += 1
        self.before(self.requests)
        return self.metastore.txn(txn)

    def reconcile(self, desired: DesiredTable) -> Outcome:
        return self.drive(reconcile_table(desired, keys=KEYS, table=TABLE, epoch=self.epoch))

    def judge(self, desired: DesiredStores | None = None, *, after: float = 0.0) -> None:
        """Advance time, and let the operator decide about stores."""
        self.now += after
        known = read_stores(self.metastore.range(KEYS.all_stores()).kvs, KEYS)
        txns = decide_store_states(
            known, desired or DesiredStores(), keys=KEYS, now=self.now, restart_delays=False, epoch=self.epoch
        )
        for txn in list(txns):
            assert self.metastore.txn(txn).succeeded

    def drain(self, name: str) -> None:
        """Ask for a store to be drained."""
        self.judge(DesiredStores(cluster=store_cluster(drain=name)))

    def give_up(self, name: str, *tables: str) -> None:
        """End a store's lease, and advance time until these tables replace its replicas."""
        desired = DesiredStores(lost_after=dict.fromkeys(tables or (TABLE,), 60.0))
        self.judge(desired)
        self.metastore.txn(Txn(success=(Delete(KEYS.store(name)),)))
        self.judge(desired)
        self.judge(desired, after=61.0)

    def finish(self, partition: int) -> None:
        """Do what the partition's leader does at the end of a change: switch."""
        view, keys = self.snapshot().partition(partition), KEYS.partition(TABLE, partition)
        assert view.pending is not None
        record = Compare(KEYS.table(TABLE), "version", ">", 0)
        txn = switch_txn(view, view.pending.head, keys=keys, token=view.pending_mod, table=record)
        assert self.metastore.txn(txn).succeeded

    def snapshot(self) -> TableSnapshot:
        found = self.answer(read_table(KEYS, TABLE))
        return TableSnapshot(KEYS, TABLE, found)


def desired(replicas: int = 3, max_concurrent: int | None = None) -> DesiredTable:
    return DesiredTable(
        max_concurrent=max_concurrent,
        record=TableRecord(partitions=PARTITIONS, replicas=replicas, consensus_size=replicas),
        view=TableView(name="orders", partitions=PARTITIONS, replicas=replicas, consensus_size=replicas),
    )


def table(*, annotations: dict[str, str] | None = None, generation: int = 1, **spec: Any) -> Table:
    """Return the Table whose key is `TABLE`; more fields of its spec by their YAML names."""
    document = {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "Table",
        "metadata": {"name": "orders", "uid": "1", "generation": generation, "annotations": annotations or {}},
        "spec": {
            "storeCluster": "s",
            "partitions": PARTITIONS,
            "schema": {"columns": [{"name": "id", "type": "int64", "nullable": False}], "primaryKey": ["id"]},
            **spec,
        },
    }
    found = parse(document)
    assert isinstance(found, Table)
    return found


def store_cluster(
    stores: int = 3, *, drain: str = "", name: str = "s", generation: int = 1, **spec: Any
) -> StoreCluster:
    """Return a StoreCluster whose stores are named s-0, s-1 and so on."""
    document = {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "StoreCluster",
        "metadata": {"name": name, "generation": generation, "annotations": {DRAIN_ANNOTATION: drain} if drain else {}},
        "spec": {"stores": stores, "storage": {"size": "1Gi"}, **spec},
    }
    found = parse(document)
    assert isinstance(found, StoreCluster)
    return found


def conditions(status: Any) -> dict[str, tuple[str, str]]:
    """Return a status's conditions by type, as status and reason, without those derived from others."""
    derived = ("Reconciling", "Stalled")
    return {entry.type: (entry.status, entry.reason) for entry in status.conditions if entry.type not in derived}


def message(status: Any, kind: str) -> str:
    """Return a condition's message."""
    return next(str(entry.message) for entry in status.conditions if entry.type == kind)

"""How fast a plan that changes all partitions of a table is written to etcd, compared with etcd's own throughput.

The reference is plain puts of the same size, 120 per transaction, with the plan's concurrency. A plan also compares
five keys of every partition, and that the plan and the operator's epoch are current. It starts from the partitions as
the planner has read them.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.report import Row
from evenkeel.driver import IN_FLIGHT, carry, drive, read_at_one_revision
from evenkeel.metastore.etcd_binary import find_etcd
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.metastore.metastore_api import Put, Txn
from evenkeel.metastore.operator_epoch import Epoch, acquire_epoch
from evenkeel.model.views import TableView
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.operator_decision import Case
from evenkeel.protocol.plan_run import PlanRun
from evenkeel.protocol.records import Retarget, StoreRecord, TableRecord, encode
from evenkeel.protocol.stored_plan import Plan, make_plan, write_plan
from evenkeel.reconcile.desired_table import DesiredTable
from evenkeel.reconcile.table_snapshot import TableSnapshot, read_table
from evenkeel.reconcile.table_steps import reconcile_table

PARTITIONS = 10_000
STORES = 100
ROUNDS = 7
KEYS = Keys(namespace="bench", store_cluster="stores")


def rows() -> Iterator[Row]:
    """Yield the rows of the metastore."""
    yield from asyncio.run(_measure())


async def _measure() -> list[Row]:
    binary = find_etcd()
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
        async with (
            EtcdServer(Path(directory), binary=binary) as server,
            EtcdMetastore(EtcdSettings(endpoints=(server.endpoint,))) as metastore,
        ):
            epoch = await acquire_epoch(metastore, KEYS.epoch, "bench")
            await _join(metastore)
            pairs = [await _round(metastore, epoch, number) for number in range(ROUNDS)]
    ceiling, (keys, seconds) = sorted(pairs, key=lambda pair: pair[1][0] / pair[1][1] / pair[0])[ROUNDS // 2]
    rate = keys / seconds
    version = ".".join(map(str, binary.version))
    return [
        Row("etcd", f"change {PARTITIONS} partitions, etcd {version}", seconds, "s"),
        Row(
            "etcd",
            "keys written by the change, vs 120-put transactions; target >= 0.5",
            rate,
            "keys/s",
            ceiling,
            rate / ceiling,
        ),
    ]


async def _round(metastore: EtcdMetastore, epoch: Epoch, number: int) -> tuple[float, tuple[int, float]]:
    """Measure the reference and then a change of a new table."""
    table = f"orders.{number}"
    await _create(metastore, epoch, table)
    return await _ceiling(metastore, number), await _change(metastore, epoch, table)


async def _join(metastore: EtcdMetastore) -> None:
    for number in range(STORES):
        store = StoreRecord(volume=f"v{number}")
        await metastore.txn(Txn(success=(Put(KEYS.store(f"s{number:03}"), encode(store)),)))


async def _create(metastore: EtcdMetastore, epoch: Epoch, table: str) -> None:
    desired = DesiredTable(
        record=TableRecord(partitions=PARTITIONS, replicas=3, consensus_size=3),
        view=TableView(name="orders", partitions=PARTITIONS, replicas=3, consensus_size=3),
    )
    await drive(reconcile_table(desired, keys=KEYS, table=table, epoch=epoch.compare), metastore=metastore, epoch=epoch)


async def _change(metastore: EtcdMetastore, epoch: Epoch, table: str) -> tuple[int, float]:
    """Give every partition a new target; return keys written, and seconds from the plan's head to the last key."""
    snapshot = TableSnapshot(KEYS, table, await read_at_one_revision(metastore, read_table(KEYS, table).prefixes))
    plan = _shifted(snapshot)
    assert snapshot.head_kv is not None
    head_mod = snapshot.head_kv.mod_revision
    for txn in write_plan(plan, keys=KEYS, table=table, head_mod=head_mod, guards=(epoch.compare,)):
        result = await metastore.txn(txn)
        assert result.succeeded
        written = result.revision
    began = time.perf_counter()
    run = PlanRun(
        keys=KEYS,
        table=table,
        plan=plan.n,
        target=plan.target,
        mode=Retarget.ADJUST,
        epoch=epoch.compare,
        head_mod=written,
    )
    run.admit({p: snapshot.partition(p) for p in range(PARTITIONS)}, revision=snapshot.revision)
    await carry(run, metastore)
    seconds = time.perf_counter() - began
    changed = run.cases[Case.STARTED]
    assert changed == PARTITIONS, run.cases
    return 2 * changed, seconds


def _shifted(snapshot: TableSnapshot) -> Plan:
    """Return a plan that moves one replica of every partition: from its first store to the one after its last."""
    assert snapshot.plan is not None
    names = [store.name for store in snapshot.stores.stores]
    at = {name: number for number, name in enumerate(names)}
    targets = []
    for partition in range(PARTITIONS):
        row = [peer.store for peer in snapshot.plan.target(partition)]
        free = (names[(at[row[-1]] + step) % STORES] for step in range(1, STORES))
        targets.append([*row[1:], next(name for name in free if name not in row)])
    return make_plan(targets, n=snapshot.plan.n + 1, inputs=snapshot.revision, voters=3, volumes=snapshot.volumes)


async def _ceiling(metastore: EtcdMetastore, number: int) -> float:
    """Return keys per second of 120-put transactions with as many keys and bytes as a change writes."""
    value = b"x" * 120
    txns = [
        Txn(success=tuple(Put(f"/ceiling/{number}/{at}", value) for at in range(first, first + 120)))
        for first in range(0, 2 * PARTITIONS, 120)
    ]
    waiting = iter(txns)
    began = time.perf_counter()

    async def worker() -> None:
        for txn in waiting:
            await metastore.txn(txn)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return 120 * len(txns) / (time.perf_counter() - began)

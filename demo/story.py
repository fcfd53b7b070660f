"""The demo's story: a table is made, a store joins, replicas are scaled twice, a store is drained, another lost."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from demo.screen import Screen
from demo.sidecars import ModelledSidecars
from evenkeel.driver import drive, read_at_one_revision
from evenkeel.metastore.api import Metastore, Put, Txn
from evenkeel.metastore.binary import find_etcd
from evenkeel.metastore.epoch import Epoch, acquire_epoch
from evenkeel.metastore.etcd import EtcdMetastore
from evenkeel.metastore.leases import keep_alive
from evenkeel.metastore.server import EtcdServer
from evenkeel.metastore.settings import EtcdSettings
from evenkeel.model.loading import load_yaml
from evenkeel.model.table import Table
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import Retarget, StoreRecord, StoreState, TableRecord, encode, shape
from evenkeel.reconcile.snapshot import TableSnapshot, read_table
from evenkeel.reconcile.table import Outcome, reconcile_table
from evenkeel.reconcile.wish import TableWish

__all__ = ["tell"]

ORDERS = Path(__file__).with_name("orders.yaml")
KEYS = Keys(namespace="demo", store_cluster="main")
ZONES = ("a", "b", "c")


class Cluster:
    """What the story acts on: a table's wish, its stores, and an operator that reconciles them."""

    def __init__(self, metastore: Metastore, epoch: Epoch, table: Table, screen: Screen, fill: float) -> None:
        self.metastore = metastore
        self.epoch = epoch
        self.resource = table
        self.table = f"{table.metadata.name}.1"
        self.screen = screen
        self.sidecars = ModelledSidecars(metastore, keys=KEYS, table=self.table, fill=fill, on_change=self._on_change)
        self.background: list[asyncio.Task[None]] = []
        self.withheld = 0
        self._changed = asyncio.Event()

    def _on_change(self) -> None:
        self._changed.set()

    def wish(self) -> TableWish:
        """The resource as the metastore's readers need it."""
        spec = self.resource.spec
        record = TableRecord(
            partitions=spec.partitions,
            replicas=spec.replicas,
            consensus_size=spec.voters,
            retarget=Retarget(spec.movement.retarget),
            spec=msgspec.Raw(spec.model_dump_json(by_alias=True, exclude_defaults=True).encode()),
        )
        rebalancer = spec.rebalancer
        return TableWish(
            record=record,
            view=self.resource.view(),
            mode=rebalancer.mode,
            class_name=rebalancer.class_name,
            max_concurrent=spec.movement.max_concurrent,
        )

    def scale(self, replicas: int) -> None:
        """What `kubectl scale` would do."""
        spec = self.resource.spec.model_copy(update={"replicas": replicas})
        self.resource = self.resource.model_copy(update={"spec": spec})

    async def join(self, number: int, tasks: asyncio.TaskGroup) -> None:
        """A store announces itself for as long as its lease lives."""
        name = f"s{number}"
        lease = await self.metastore.lease(10)
        record = StoreRecord(volume=f"vol-{name}", zone=ZONES[number % 3], address=f"{name}.main:9000")
        await self.metastore.txn(Txn(success=(Put(KEYS.store(name), encode(record), lease=lease.id),)))
        self.background.append(tasks.create_task(keep_alive(lease)))

    async def mark(self, name: str, *, draining: bool = False, replace: bool = False) -> None:
        """What an operator decided about a store."""
        record = StoreState(volume=f"vol-{name}", draining=draining, replace=replace)
        await self.metastore.txn(Txn(success=(Put(KEYS.store_state(name), encode(record)),)))

    async def snapshot(self) -> TableSnapshot:
        """Everything about the table at one revision."""
        found = await read_at_one_revision(self.metastore, read_table(KEYS, self.table).prefixes)
        return TableSnapshot(KEYS, self.table, found)

    async def reconcile(self) -> Outcome:
        """One pass of the operator."""
        requests = reconcile_table(self.wish(), keys=KEYS, table=self.table, epoch=self.epoch.compare)
        outcome = await drive(requests, metastore=self.metastore, epoch=self.epoch)
        self.withheld = outcome.withheld
        return outcome

    async def arrive(self, *, until: Callable[[int], bool] | None = None) -> None:
        """Show the keys change until every partition is where the newest plan wants it, or `until` so many are."""
        snapshot = await self.snapshot()
        assert snapshot.plan is not None
        total = self.resource.spec.partitions
        with self.screen.watching(self.sidecars):
            while True:
                self._changed.clear()
                done = sum(self._is_there(snapshot, partition) for partition in range(total))
                self.screen.refresh(self.sidecars, done=done, total=total)
                if done == total or (until is not None and until(done)):
                    return
                if self._moving() < self.resource.spec.movement.max_concurrent and self.withheld:
                    await self.reconcile()
                async with asyncio.timeout(60):
                    await self._changed.wait()

    def _moving(self) -> int:
        return sum(self.sidecars.view(partition).pending is not None for partition in self.sidecars.groups)

    def _is_there(self, snapshot: TableSnapshot, partition: int) -> bool:
        assert snapshot.plan is not None
        view = self.sidecars.view(partition)
        at_target = view.stable is not None and shape(view.stable.peers) == shape(snapshot.plan.target(partition))
        return at_target and view.pending is None and view.planned is None


async def tell(screen: Screen, *, fast: bool) -> None:
    """The whole story, on an etcd of its own that is gone afterwards."""
    began = time.monotonic()
    binary = find_etcd()
    if binary.warning:
        screen.say(f"[yellow]{binary.warning}[/]")
    with tempfile.TemporaryDirectory(prefix="evenkeel-demo-") as directory:
        async with (
            EtcdServer(Path(directory) / "etcd", binary=binary) as server,
            EtcdMetastore(EtcdSettings(endpoints=(server.endpoint,))) as metastore,
        ):
            version = ".".join(map(str, binary.version))
            screen.say(f"etcd {version} ({binary.source}) answers at {server.endpoint}")
            screen.say(
                "Stores and their raft groups are modelled: filling a replica is a matter of waiting. All else is real."
            )
            epoch = await acquire_epoch(metastore, KEYS.epoch, "demo-operator")
            table = _load(screen)
            cluster = Cluster(metastore, epoch, table, screen, fill=0.05 if fast else 0.8)
            async with _background(cluster) as tasks:
                await _chapters(cluster, tasks)
    screen.say(f"\nDone in {time.monotonic() - began:.0f} s; etcd and its data are gone again.")


def _load(screen: Screen) -> Table:
    resources = load_yaml(ORDERS.read_text(), source=ORDERS.name)
    table = next(resource for resource in resources if isinstance(resource, Table))
    spec = table.spec
    screen.say(
        f"{ORDERS.name} is valid: table [bold]{table.metadata.name}[/] with {spec.partitions} partitions, "
        f"{spec.replicas} replicas, {spec.voters} of them voting"
    )
    return table


@contextlib.asynccontextmanager
async def _background(cluster: Cluster) -> AsyncIterator[asyncio.TaskGroup]:
    """Stores' leases and modelled sidecars, for as long as the story lasts."""
    async with asyncio.TaskGroup() as tasks:
        cluster.background.append(tasks.create_task(cluster.sidecars.run()))
        yield tasks
        for task in cluster.background:
            task.cancel()


async def _chapters(cluster: Cluster, tasks: asyncio.TaskGroup) -> None:
    screen = cluster.screen
    screen.chapter("Six stores in three zones, and a table")
    for number in range(1, 7):
        await cluster.join(number, tasks)
    outcome = await cluster.reconcile()
    screen.say(f"plan {outcome.plan} created the table; these are its keys for partition 0:")
    await _show_keys(cluster)
    await cluster.arrive()

    screen.chapter("Store s7 joins")
    await cluster.join(7, tasks)
    await _carry_out(cluster)

    screen.chapter("Scaled to 5 replicas, and to 4 before all are filled")
    cluster.scale(5)
    await _carry_out(cluster, until=lambda done: done >= 3)
    cluster.scale(4)
    await _carry_out(cluster)

    screen.chapter("Store s2 is drained")
    await cluster.mark("s2", draining=True)
    await _carry_out(cluster)

    screen.chapter("Store s5 is lost for longer than lostAfter")
    await cluster.mark("s5", replace=True)
    await _carry_out(cluster)
    await _verify(cluster)


async def _show_keys(cluster: Cluster) -> None:
    snapshot = await cluster.snapshot()
    partition = KEYS.partition(cluster.table, 0)
    shown = (KEYS.table(cluster.table), KEYS.plan_head(cluster.table), partition.stable, partition.trigger)
    cluster.screen.keys((key, snapshot.kvs[key].value) for key in shown if key in snapshot.kvs)


async def _carry_out(cluster: Cluster, *, until: Callable[[int], bool] | None = None) -> None:
    outcome = await cluster.reconcile()
    cases = ", ".join(f"{count} {case}" for case, count in sorted(outcome.cases.items()))
    withheld = f"; {outcome.withheld} wait for their turn" if outcome.withheld else ""
    cluster.screen.say(f"plan {outcome.plan}: {cases}{withheld}")
    cluster.screen.moves(outcome.moves or ())
    before = cluster.sidecars.copied
    await cluster.arrive(until=until)
    if until is None:
        filled = cluster.sidecars.copied - before
        cluster.screen.say(f"all partitions are at their target; {filled} modelled replicas filled")


async def _verify(cluster: Cluster) -> None:
    """Read everything back from etcd and hold it against what was wanted."""
    snapshot = await cluster.snapshot()
    assert snapshot.plan is not None
    wrong = []
    per_store: dict[str, int] = {}
    for partition in range(cluster.resource.spec.partitions):
        view = snapshot.partition(partition)
        assert view.stable is not None
        reached = shape(view.stable.peers) == shape(snapshot.plan.target(partition))
        if not reached or view.pending or view.planned or view.lock or view.trigger != snapshot.plan.n:
            wrong.append(partition)
        for peer in view.stable.peers:
            per_store[peer.store] = per_store.get(peer.store, 0) + 1
    if wrong:
        raise RuntimeError(f"partitions {wrong} are not where plan {snapshot.plan.n} wants them")
    spread = ", ".join(f"{store} {count}" for store, count in sorted(per_store.items()))
    actions = ", ".join(f"{count} {what}" for what, count in sorted(cluster.sidecars.actions.items()))
    cluster.screen.chapter("Verified in etcd")
    cluster.screen.say(f"every partition is stable at plan {snapshot.plan.n}; replicas per store: {spread}")
    cluster.screen.say(
        f"what the modelled leaders did: {actions}; fills given up by retargeting: {cluster.sidecars.wasted}"
    )

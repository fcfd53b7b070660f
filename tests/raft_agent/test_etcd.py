"""Agents on a real etcd that restarts during a change; raft is modelled, time is real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer, find_etcd
from evenkeel.metastore.metastore_api import Put, Snapshot, Txn
from evenkeel.protocol import table_lifecycle
from evenkeel.protocol.change_steps import assign_ids
from evenkeel.protocol.operator_decision import retarget
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.records import (
    Retarget,
    Stable,
    StoreRecord,
    TableRecord,
    TableState,
    Tombstone,
    encode,
    shape,
)
from evenkeel_raft.agent.agent import Agent
from evenkeel_raft.agent.agent_context import StoreIdentity
from evenkeel_raft.agent.agent_settings import AgentSettings
from evenkeel_raft.agent.agent_status import AgentState
from tests.metastore.support import FAST_ELECTIONS, settings_for
from tests.protocol.support import KEYS, targets
from tests.raft_agent.cluster import ANYTIME, P0, TABLE
from tests.raft_agent.model import Disk, ModelGroups, Network

OWN = KEYS.partition(*P0)
SETTINGS = AgentSettings(lease_seconds=2, report_seconds=0.2)


class Stores:
    """Agents with their own connections, and one connection for the test."""

    def __init__(self, etcd: EtcdServer, names: str) -> None:
        self.network = Network()
        self.operator = EtcdMetastore(settings_for(etcd.endpoint))
        self.agents: dict[str, Agent] = {}
        self._ways: list[EtcdMetastore] = [self.operator]
        self._tasks: list[asyncio.Task[None]] = []
        self._plan = 1
        for name in names.split():
            self._ways.append(EtcdMetastore(settings_for(etcd.endpoint)))
            groups = ModelGroups(self.network, name, Disk(f"{name}-1"))
            me = StoreIdentity(name, StoreRecord(volume=f"{name}-1", address=f"{name}:7000"))
            self.agents[name] = Agent(self._ways[-1], keys=KEYS, groups=groups, me=me, settings=SETTINGS)
            self._tasks.append(asyncio.ensure_future(self.agents[name].run()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        for way in self._ways:
            await way.close()
        assert [end for end in ends if not isinstance(end, asyncio.CancelledError)] == []

    async def until(self, condition: Callable[[Snapshot], bool]) -> None:
        """Let raft and the agents work until the metastore's keys are so."""
        async with asyncio.timeout(30):
            while True:
                self.network.tick()
                if condition(await self.operator.range(KEYS.root)):
                    return

    def states(self) -> set[AgentState]:
        return {agent.status().state for agent in self.agents.values()}

    async def retarget(self, row: str) -> None:
        self._plan += 1
        succeeded = False
        while not succeeded:
            view = view_of(await self.operator.range(KEYS.root))
            decision = retarget(view, targets(row), keys=OWN, plan=self._plan, mode=Retarget.ADJUST)
            succeeded = (await self.operator.txn(Txn(view.compares(OWN), decision.ops))).succeeded

    async def put(self, *records: tuple[str, object]) -> None:
        await self.operator.txn(Txn(success=tuple(Put(key, encode(record)) for key, record in records)))

    def settled(self, row: str) -> Callable[[Snapshot], bool]:
        def condition(found: Snapshot) -> bool:
            view = view_of(found)
            keys = (view.pending_mod, view.planned_mod, view.lock_mod)
            holders = {name for name, store in self.network.stores.items() if P0 in store.disk.replicas}
            arrived = view.stable is not None and shape(view.stable.peers) == shape(targets(row))
            return arrived and keys == (0, 0, 0) and holders == set(row.split())

        return condition


def view_of(found: Snapshot) -> PartitionView:
    return read_partition(OWN, {kv.key: kv for kv in found.kvs})


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    async with EtcdServer(tmp_path / "etcd", binary=find_etcd(), extra_args=FAST_ELECTIONS) as server:
        yield server


@pytest.fixture
async def stores(etcd: EtcdServer) -> AsyncIterator[Stores]:
    made = Stores(etcd, "a b c d")
    yield made
    await made.close()


async def test_a_table_lives_on_etcd(etcd: EtcdServer, stores: Stores) -> None:
    """A table is created, moved, moved during an etcd restart, and dropped; nothing is lost or left behind."""
    record = TableRecord(partitions=1, replicas=3, consensus_size=3, state=TableState.READY)
    genesis = Stable(assign_ids(targets("a b c"), keep=(), plan=1), genesis=True)
    await stores.put((KEYS.table(TABLE), record), (OWN.stable, genesis), (OWN.trigger, 1))
    await stores.until(stores.settled("a b c"))
    await stores.retarget("b c d")
    await stores.until(stores.settled("b c d"))
    await stores.until(lambda found: KEYS.load("d") in {kv.key for kv in found.kvs})

    stores.network.held = {"a"}
    await stores.retarget("a c d")
    await stores.until(lambda _: P0 in stores.network.stores["a"].disk.replicas)
    await etcd.terminate()
    stores.network.held = set()
    await etcd.start()
    await stores.until(stores.settled("a c d"))
    await stores.until(lambda _: stores.states() == {AgentState.FOLLOWING})

    kv = await stores.operator.get(KEYS.table(TABLE))
    assert kv is not None
    volumes = [(name, f"{name}-1") for name in stores.agents]
    stores.network.dropped = lambda _: True
    await stores.operator.txn(table_lifecycle.drop(kv, volumes, keys=KEYS, table=TABLE, epoch=ANYTIME))
    await stores.until(
        lambda found: {kv.key: kv for kv in found.kvs}[KEYS.tombstone(TABLE)].value == encode(Tombstone(()))
    )
    assert [store.disk.replicas for store in stores.network.stores.values()] == [{}, {}, {}, {}]
    found = await stores.operator.range(KEYS.root)
    assert [kv.key for kv in found.kvs if f"/{TABLE}" in kv.key] == [KEYS.tombstone(TABLE)]

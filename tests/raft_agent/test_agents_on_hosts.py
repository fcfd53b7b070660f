"""Agents on real hosts: real raft, logs, links and state machines, and an in-memory metastore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Put, Txn
from evenkeel.metastore.mvcc import Mvcc
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
    TargetPeer,
    encode,
    shape,
)
from evenkeel_raft.agent.agent import Agent
from evenkeel_raft.agent.agent_context import StoreIdentity
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import ANYTIME
from tests.raft_host.support import LOOPBACK, ORDERS, Cluster

OWN = KEYS.partition(*ORDERS)


class Stores:
    """Hosts with their agents, and the operator's actions."""

    def __init__(self, hosts: Cluster) -> None:
        self.hosts = hosts
        self.mvcc = Mvcc()
        self.metastore = MemoryMetastore(clock=hosts.clock, mvcc=self.mvcc)
        self.agents: dict[str, Agent] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._plan = 1

    def start(self, name: str) -> None:
        member = self.hosts[name]
        record = StoreRecord(volume=member.host.identity.volume, address=f"{LOOPBACK}:{member.port}")
        self.agents[name] = Agent(
            self.metastore,
            keys=KEYS,
            groups=member.host,
            me=StoreIdentity(name, record),
            clock=self.hosts.clock,
            rng=Random(name),
        )
        self._tasks[name] = asyncio.ensure_future(self.agents[name].run())

    async def stop(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for name in list(self._tasks):
            assert not self._tasks[name].done(), f"{name}'s agent has failed"
            await self.stop(name)
        await self.metastore.close()

    def targets(self, names: str) -> tuple[TargetPeer, ...]:
        return tuple(TargetPeer(name, self.hosts[name].host.identity.volume) for name in names.split())

    async def create(self, names: str, mode: Retarget) -> None:
        record = TableRecord(partitions=1, replicas=3, consensus_size=3, retarget=mode, state=TableState.READY)
        stable = Stable(assign_ids(self.targets(names), keep=(), plan=1), genesis=True)
        puts = ((KEYS.table(ORDERS.table), record), (OWN.stable, stable), (OWN.trigger, 1))
        await self.metastore.txn(Txn(success=tuple(Put(key, encode(value)) for key, value in puts)))
        await self.hosts.until(self.hosts.leader)

    async def retarget(self, names: str, mode: Retarget) -> None:
        self._plan += 1
        succeeded = False
        while not succeeded:
            view = self.view()
            decision = retarget(view, self.targets(names), keys=OWN, plan=self._plan, mode=mode)
            succeeded = (await self.metastore.txn(Txn(view.compares(OWN), decision.ops))).succeeded

    async def arrive(self, names: str) -> None:
        await self.hosts.until(lambda: self.settled(names))

    def view(self) -> PartitionView:
        return read_partition(OWN, {key: kv for key in OWN.all() if (kv := self.mvcc.get(key)) is not None})

    def settled(self, names: str) -> bool:
        view = self.view()
        return (
            view.stable is not None
            and shape(view.stable.peers) == shape(self.targets(names))
            and (view.pending_mod, view.planned_mod, view.lock_mod) == (0, 0, 0)
            and self.holders() == set(names.split())
        )

    def holders(self) -> set[str]:
        return {name for name, member in self.hosts.members.items() if member.up and ORDERS in member.host.running()}


@pytest.fixture
async def new_stores(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Stores]]]:
    made: list[Stores] = []

    async def make(*names: str) -> Stores:
        hosts = Cluster(tmp_path, *names)
        made.append(Stores(hosts))
        for name in names:
            await hosts[name].start()
            await hosts[name].start_state_machine()
            made[-1].start(name)
        return made[-1]

    yield make
    for stores in made:
        await stores.close()
        await stores.hosts.close()


@pytest.mark.parametrize("mode", list(Retarget))
async def test_three_five_three(new_stores: Callable[..., Awaitable[Stores]], mode: Retarget) -> None:
    """Replicas are added and removed; data written before, during and after the changes is complete."""
    stores = await new_stores("a", "b", "c", "d", "e")
    await stores.create("a b c", mode)
    await stores.hosts.write(x="1")
    await stores.retarget("a b c d e", mode)
    await stores.hosts.write(y="2")
    await stores.arrive("a b c d e")
    await stores.retarget("c d e", mode)
    await stores.hosts.write(z="3")
    await stores.arrive("c d e")
    await stores.hosts.equal("cde", {"x": "1", "y": "2", "z": "3"})
    assert [await stores.hosts[name].state() for name in "ab"] == [{}, {}]


async def test_a_restarted_store_catches_up_with_a_move(new_stores: Callable[..., Awaitable[Stores]]) -> None:
    """A store that was down during a move deletes its replica after its restart."""
    stores = await new_stores("a", "b", "c", "d")
    await stores.create("a b c", Retarget.ADJUST)
    await stores.hosts.write(x="1")
    gone = next(name for name in "abc" if stores.hosts[name] is not stores.hosts.leading())
    kept = " ".join(sorted({"a", "b", "c", "d"} - {gone}))
    await stores.stop(gone)
    await stores.hosts[gone].stop()
    await stores.retarget(kept, Retarget.ADJUST)
    await stores.hosts.until(lambda: stores.view().pending is None)
    await stores.hosts[gone].start()
    assert ORDERS in stores.hosts[gone].host.running()
    stores.start(gone)
    await stores.arrive(kept)
    await stores.hosts.until(lambda: stores.agents[gone].status().counters.deletions == 1)


async def test_a_drop_leaves_nothing(new_stores: Callable[..., Awaitable[Stores]]) -> None:
    """A drop leaves neither replicas nor rows, and all stores confirm it."""
    stores = await new_stores("a", "b", "c")
    await stores.create("a b c", Retarget.ADJUST)
    await stores.hosts.write(x="1")
    volumes = [(name, stores.hosts[name].host.identity.volume) for name in "abc"]
    record = await stores.metastore.get(KEYS.table(ORDERS.table))
    assert record is not None
    await stores.metastore.txn(table_lifecycle.drop(record, volumes, keys=KEYS, table=ORDERS.table, epoch=ANYTIME))
    await stores.hosts.until(lambda: stores.mvcc.get(KEYS.tombstone(ORDERS.table)).value == b'{"waiting":[]}')  # type: ignore[union-attr]
    assert stores.holders() == set()
    assert [await stores.hosts[name].state() for name in "abc"] == [{}, {}, {}]


async def test_no_record_stays_when_every_state_machine_is_gone(new_stores: Callable[..., Awaitable[Stores]]) -> None:
    """When no sidecar can serve, the leader record is withdrawn although leadership keeps moving."""
    stores = await new_stores("a", "b", "c")
    await stores.create("a b c", Retarget.ADJUST)
    key = KEYS.leader(*ORDERS)
    await stores.hosts.until(lambda: stores.mvcc.get(key) is not None)
    for name in "abc":
        await stores.hosts[name].stop_machine()
    deadline = stores.hosts.clock.now() + 8
    await stores.hosts.until(lambda: stores.mvcc.get(key) is None or stores.hosts.clock.now() > deadline)
    assert stores.mvcc.get(key) is None
    for name in "abc":
        await stores.hosts[name].start_state_machine()
    await stores.hosts.until(lambda: stores.mvcc.get(key) is not None)

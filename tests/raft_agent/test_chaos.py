"""Random faults from a seed: after they end, the last target is reached.

`model` checks safety throughout.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from evenkeel.metastore.metastore_api import Txn
from evenkeel.protocol.records import InhibitionOrder, Leader, LeaderOrder, Retarget
from evenkeel_raft.shared.raft_groups import Partition
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import TABLE, Cluster, StoreProcess

NAMES = "abcde"
PARTITIONS = [Partition(TABLE, number) for number in range(3)]
SEEDS = range(12)


class Chaos:
    """Injects random faults, and repairs everything at the end."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._rng = random.Random(seed)
        self.rows = dict.fromkeys(PARTITIONS, "a b c")

    async def go_on(self, steps: int) -> None:
        faults = (
            *[self.retarget] * 4, self.kill, self.start, self.cut, self.heal, self.hold_back, self.fill, self.leave,
            self.come_back, self.lose, self.find, self.blind, self.order, self.drain,
        )  # fmt: skip
        for _ in range(steps):
            await self._rng.choice(faults)()
            await self._cluster.pass_time(self._rng.choice([0.05, 0.2, 1.0, 5.0]))

    async def end(self) -> None:
        self._cluster.network.cut = set()
        self._cluster.network.held = set()
        for store in self._cluster.stores.values():
            if store.task is None:
                store.start()
            store.way.come_back()
            store.way.unblind()
            store.way.drop = store.way.lose_answer = lambda _: False

    async def leave_one(self) -> None:
        """Kill all stores, and start one that was reported as leader: it has no quorum."""
        await self.end()
        await self._cluster.pass_time(5)
        reports = [self._cluster.reported(partition) for partition in PARTITIONS]
        for store in self._cluster.stores.values():
            await store.kill()
        alone = self._rng.choice(sorted({report.store for report in reports if report is not None} or set(NAMES)))
        self._cluster[alone].start()

    async def retarget(self) -> None:
        partition = self._rng.choice(PARTITIONS)
        members = self._rng.sample(NAMES, self._rng.choice([1, 3, 3, 4]))
        row = " ".join(name + ("*" if at == 3 else "") for at, name in enumerate(members))
        self.rows[partition] = row
        await self._cluster.retarget(row, partition=partition)

    async def kill(self) -> None:
        store = self._pick()
        if store.task is not None and sum(other.task is None for other in self._cluster.stores.values()) < 2:
            await store.kill()

    async def start(self) -> None:
        store = self._pick()
        if store.task is None:
            store.start()

    async def cut(self) -> None:
        self._cluster.network.cut = {self._pick().name}

    async def heal(self) -> None:
        self._cluster.network.cut = set()

    async def hold_back(self) -> None:
        self._cluster.network.held = {self._pick().name}

    async def fill(self) -> None:
        self._cluster.network.held = set()

    async def leave(self) -> None:
        self._pick().way.leave()

    async def come_back(self) -> None:
        for store in self._cluster.stores.values():
            store.way.come_back()

    async def lose(self) -> None:
        way, rng = self._pick().way, self._rng

        def sometimes(_: Txn) -> bool:
            return rng.random() < 0.3

        if rng.random() < 0.5:
            way.drop = sometimes
        else:
            way.lose_answer = sometimes

    async def find(self) -> None:
        for store in self._cluster.stores.values():
            store.way.drop = store.way.lose_answer = lambda _: False
            store.way.unblind()

    async def blind(self) -> None:
        self._pick().way.blind()

    async def order(self) -> None:
        order = LeaderOrder(self._pick().name, self._cluster.clock.now() + 20)
        await self._cluster.put(KEYS.leader_target(*self._rng.choice(PARTITIONS)), order)

    async def drain(self) -> None:
        lease = await self._cluster.metastore.lease(10)
        await self._cluster.put(KEYS.inhibition(self._pick().name), InhibitionOrder(), lease=lease.id)

    def _pick(self) -> StoreProcess:
        return self._cluster[self._rng.choice(NAMES)]


def problems(cluster: Cluster) -> dict[str, object]:
    """Return the problems that agents report."""
    statuses = {store.name: store.agent.status() for store in cluster.stores.values()}
    return {name: status.problems for name, status in statuses.items() if status.problems}


def correctly_reported(cluster: Cluster) -> Callable[[Partition], bool]:
    """Whether the leader record names the actual leader."""

    def matches(partition: Partition) -> bool:
        leader = cluster.network.leader(partition)
        return leader is not None and cluster.reported(partition) == Leader(leader.id[0], leader.term)

    return matches


def misleading(cluster: Cluster) -> list[tuple[Partition, Leader]]:
    """Return leader records that name a running store that does not lead."""
    found = [(partition, cluster.reported(partition)) for partition in PARTITIONS]
    return [
        (partition, leader)
        for partition, leader in found
        if leader is not None
        and cluster[leader.store].task is not None
        and cluster[leader.store].groups.leading(partition) is None
    ]


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_last_target_is_reached(seed: int) -> None:
    """Stores crash, are partitioned, and lose etcd, requests and responses, while targets keep changing."""
    mode = list(Retarget)[seed % 3]
    async with Cluster(" ".join(NAMES)) as cluster:
        await cluster.create(*["a b c"] * len(PARTITIONS), mode=mode)
        await cluster.until(lambda: all(cluster.settled("a b c", partition) for partition in PARTITIONS))
        chaos = Chaos(cluster, seed)
        await chaos.go_on(60)
        await chaos.leave_one()
        await cluster.until(lambda: misleading(cluster) == [], seconds=20)
        await chaos.end()
        await cluster.until(
            lambda: all(cluster.settled(row, partition) for partition, row in chaos.rows.items()), seconds=240
        )
        await cluster.until(lambda: all(cluster.now(KEYS.leader_target(*p)) is None for p in PARTITIONS))
        await cluster.until(lambda: problems(cluster) == {} and all(map(correctly_reported(cluster), PARTITIONS)))

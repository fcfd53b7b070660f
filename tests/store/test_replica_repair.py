"""A replica that differs from the majority is rebuilt; without certainty none is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from evenkeel.errors import RequestError, UnavailableError
from evenkeel.protocol.records import Peer, Stable, StoreRecord, encode
from evenkeel.wire.flight import GroupStatus, RebuildRequest
from evenkeel.wire.socket_messages import Doubt
from evenkeel_store.engine.group_state import Group
from evenkeel_store.maintenance.replica_comparison import ReplicaComparer
from evenkeel_store.maintenance.replica_repair import RECHECK_SECONDS, ReplicaRepairer
from evenkeel_store.serving.store_service import StoreService
from tests.store.serving import KEYS, ORDERS, Store, table_record
from tests.wire.support import wait_until

WRONG = "9:bad"
TABLE = "orders.1"


class Scripted:
    """Other stores that answer with the right hash, or a scripted one."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.hashes: dict[str, str] = {}
        """By store; empty for the right hash."""
        self.unreachable: set[str] = set()
        self.late: set[str] = set()
        self.damaged: dict[str, int] = {}
        """For how many more requests a store reports damage."""
        self.rebuilt: list[tuple[str, str]] = []

    async def status(self, address: str, table: str, partition: int) -> GroupStatus | None:
        store = address.removeprefix("grpc://")
        if store in self.unreachable:
            raise UnavailableError(f"{store} is unreachable")
        self.damaged[store] = max(0, self.damaged.get(store, 0) - 1)
        hashes = {index: self.hashes[store] or right for index, right in self._scene.group.hashes.items()}
        return GroupStatus(
            table=table,
            partition=partition,
            group=1,
            replica=1,
            applied=1,
            leader=False,
            term=1,
            columns=1,
            rows=1,
            unfolded=0,
            hashes={} if store in self.late else hashes,
            damage="discarded" if self.damaged[store] else "",
        )

    async def rebuild(self, address: str, request: RebuildRequest) -> None:
        store = address.removeprefix("grpc://")
        if self.hashes[store] == request.hash:
            raise RequestError("nothing to rebuild")
        self.rebuilt.append((store, request.hash))
        self.hashes[store] = ""
        self.damaged[store] = 3


class Scene:
    """A real store that leads, and scripted other stores."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.peers = Scripted(self)
        self.service = StoreService(
            store.state_machine, store.end, store.routes, store=store.name, clock=store.clock, timeout=2.0
        )

    async def begin(self, *others: str, heals: bool = True) -> None:
        await self.store.table(table_record(ORDERS))
        for store in others:
            self.store.routes.put(KEYS.store(store), encode(StoreRecord(volume=store, flight=f"grpc://{store}")))
        peers = tuple(Peer(store, store, 3) for store in ("main-0", *others))
        self.store.routes.put(KEYS.partition(TABLE, 0).stable, encode(Stable(peers)))
        self.peers.hashes = dict.fromkeys(others, "")
        clock = self.store.clock
        repairer = ReplicaRepairer(self.service, self.peers, heals=heals, clock=clock)
        self.comparer = ReplicaComparer(self.service, repairer, seconds=3600, clock=clock)
        await self.comparer.compare_next()
        clock.advance(3600)

    @property
    def group(self) -> Group:
        [group] = self.store.state_machine.groups.of_table()
        return group

    async def compare(self) -> bool:
        """Run one pass of the comparer to its end; returns whether it compared."""
        before = len(self.group.hashes)
        comparing = asyncio.ensure_future(self.comparer.compare_next())
        # The virtual clock advances only while the pass waits: a disk may be slow.
        while not comparing.done():
            await asyncio.sleep(0.001)
            self.store.clock.advance(0.1)
        await comparing
        return len(self.group.hashes) > before

    async def compare_again(self) -> bool:
        self.store.clock.advance(RECHECK_SECONDS)
        return await self.compare()

    @property
    def reported(self) -> Doubt:
        """The last doubt that the sidecar got."""
        return self.store.sidecar.doubts.get(self.group.number, Doubt(""))

    @property
    def damage(self) -> str:
        return self.group.metadata.damage


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with Store(tmp_path / "store") as store:
        yield Scene(store)


async def test_wrong_follower(scene: Scene) -> None:
    """A wrong follower is found twice, rebuilt, awaited and counted; after that nothing is compared."""
    await scene.begin("main-1", "main-2")
    scene.peers.hashes["main-2"] = WRONG
    assert await scene.compare()
    assert scene.peers.rebuilt == [], "one comparison is not enough"
    assert await scene.compare_again()
    right = next(iter(scene.group.hashes.values()))
    assert scene.peers.rebuilt == [("main-2", right)]
    assert scene.peers.damaged["main-2"] == 0, "the repair waited for it"
    assert scene.store.state_machine.counters["healed_replicas"] == 1
    assert await scene.compare_again(), "once more, to confirm the repair"
    assert not await scene.compare_again()
    assert len(scene.peers.rebuilt) == 1


async def test_difference_seen_once(scene: Scene) -> None:
    """Nothing is discarded if a second comparison does not confirm it."""
    await scene.begin("main-1", "main-2")
    scene.peers.hashes["main-2"] = WRONG
    await scene.compare()
    scene.peers.hashes |= {"main-2": "", "main-1": WRONG}
    await scene.compare_again()
    assert scene.peers.rebuilt == [], "another one differs now"


async def test_wrong_leader_hands_over_first(scene: Scene) -> None:
    """A wrong leader asks its sidecar to hand over, and discards its rows only once it does not lead."""
    await scene.begin("main-1", "main-2")
    scene.peers.hashes = dict.fromkeys(scene.peers.hashes, WRONG)
    await scene.compare()
    assert "and most replicas' is 9:bad" in scene.group.comparison_problem
    await wait_until(lambda: scene.reported == Doubt(scene.group.comparison_problem))
    comparing = asyncio.ensure_future(scene.compare_again())
    await wait_until(lambda: scene.reported.unfit)
    assert not scene.damage
    [group] = scene.store.sidecar.groups.values()
    group.leading, group.hint = False, "main-1"
    group.publish_role()
    await comparing
    assert "and most replicas' is 9:bad" in scene.damage
    assert scene.store.state_machine.counters["condemnations"] == 1


async def test_wrong_leader_without_successor(scene: Scene) -> None:
    """If no replica can take over, the leader keeps its rows and keeps reporting the doubt."""
    await scene.begin("main-1", "main-2")
    scene.peers.hashes = dict.fromkeys(scene.peers.hashes, WRONG)
    await scene.compare()
    await scene.compare_again()
    assert not scene.damage
    await wait_until(lambda: scene.reported == Doubt(scene.group.comparison_problem))
    assert scene.group.doubt


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"main-1": WRONG}, "two replicas have no majority"),
        ({"main-1": WRONG, "main-2": "9:worse"}, "all three differ"),
        ({"main-1": "", "main-2": WRONG, "main-3": WRONG}, "two against two"),
    ],
)
async def test_no_majority(scene: Scene, others: dict[str, str], why: str) -> None:
    """Without a majority nothing is rebuilt; status and sidecar get all hashes, and people decide."""
    await scene.begin(*others)
    scene.peers.hashes = others
    await scene.compare()
    assert not await scene.compare_again(), "the next comparison is the regular one"
    assert scene.peers.rebuilt == [], why
    assert not scene.damage
    assert "no hash of the rows has a majority (main-0 has 0:" in scene.group.doubt
    assert f"; main-1 has {others['main-1'] or '0:'}" in scene.group.doubt
    await wait_until(lambda: scene.reported.detail == scene.group.doubt)


@pytest.mark.parametrize("how", ["unreachable", "damaged", "late"])
async def test_silent_replica(scene: Scene, how: str) -> None:
    """While a replica is unreachable, being restored or behind, none is rebuilt, however many agree."""
    await scene.begin("main-1", "main-2", "main-3", "main-4")
    scene.peers.hashes["main-4"] = WRONG

    def silence(on: bool) -> None:
        scene.peers.unreachable = {"main-1"} if how == "unreachable" and on else set()
        scene.peers.damaged["main-1"] = 1_000_000 if how == "damaged" and on else 0
        scene.peers.late = {"main-1"} if how == "late" and on else set()

    silence(True)
    for _ in range(3):
        await scene.compare()
        assert scene.peers.rebuilt == []
        scene.store.clock.advance(RECHECK_SECONDS)
    silence(False)
    await scene.compare()
    await scene.compare_again()
    assert [store for store, _ in scene.peers.rebuilt] == ["main-4"]


async def test_one_at_a_time(scene: Scene) -> None:
    """Of two wrong replicas one is rebuilt, and the other only after ten minutes."""
    await scene.begin("main-1", "main-2", "main-3", "main-4")
    scene.peers.hashes |= {"main-3": WRONG, "main-4": "9:worse"}
    await scene.compare()
    await scene.compare_again()
    assert [store for store, _ in scene.peers.rebuilt] == ["main-3"]
    for _ in range(3):
        assert await scene.compare_again()
        assert len(scene.peers.rebuilt) == 1
    scene.store.clock.advance(600)
    await scene.compare()
    assert [store for store, _ in scene.peers.rebuilt] == ["main-3", "main-4"]


async def test_healing_turned_off(scene: Scene) -> None:
    """With healing turned off, differences are reported and nothing is rebuilt."""
    await scene.begin("main-1", "main-2", heals=False)
    scene.peers.hashes = dict.fromkeys(scene.peers.hashes, WRONG)
    await scene.compare()
    assert not await scene.compare_again()
    assert not scene.damage
    assert scene.group.doubt


async def test_only_the_leader_reports(scene: Scene) -> None:
    """A store that no longer leads clears what it found while it led."""
    await scene.begin("main-1")
    scene.peers.hashes["main-1"] = WRONG
    await scene.compare()
    assert scene.group.doubt
    [group] = scene.store.sidecar.groups.values()
    group.leading = False
    group.publish_role()
    await wait_until(lambda: not scene.store.state_machine.groups.role(group.number).leader)
    await scene.compare()
    assert scene.group.doubt == ""
    await wait_until(lambda: scene.reported == Doubt(""))


async def test_damage_is_reported_at_once(scene: Scene) -> None:
    """The sidecar is notified of damage without asking: a damaged replica must stop leading."""
    await scene.begin("main-1")
    await scene.store.state_machine.discard(scene.group.number, "bad block")
    await wait_until(lambda: scene.reported.detail == "bad block")
    assert scene.damage == "bad block"

"""A replica that is alone with its rows is built anew by itself; nobody is where it is not certain who is right."""

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
from evenkeel_store.maintenance.replica_repair import AGAIN_SECONDS, ReplicaRepairer
from evenkeel_store.serving.store_service import StoreService
from tests.store.serving import KEYS, ORDERS, Store, table_record
from tests.wire.support import turns

WRONG = "9:bad"
TABLE = "orders.1"


class Scripted:
    """Other stores, each with what it has to say of its rows: right, or something else."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.hashes: dict[str, str] = {}
        """By store: empty for the right hash."""
        self.away: set[str] = set()
        self.late: set[str] = set()
        self.damaged: dict[str, int] = {}
        """How often yet a store says that it is damaged."""
        self.rebuilt: list[tuple[str, str]] = []

    async def status(self, address: str, table: str, partition: int) -> GroupStatus | None:
        store = address.removeprefix("grpc://")
        if store in self.away:
            raise UnavailableError(f"{store} is away")
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
            damage="given up" if self.damaged[store] else "",
        )

    async def rebuild(self, address: str, request: RebuildRequest) -> None:
        store = address.removeprefix("grpc://")
        if self.hashes[store] == request.hash:
            raise RequestError("nothing to rebuild")
        self.rebuilt.append((store, request.hash))
        self.hashes[store] = ""
        self.damaged[store] = 3


class Scene:
    """A real store that leads, and others that say what they are told to."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.others = Scripted(self)
        self.service = StoreService(
            store.state_machine, store.end, store.routes, store=store.name, clock=store.clock, timeout=2.0
        )

    async def begin(self, *others: str, heals: bool = True) -> None:
        await self.store.table(table_record(ORDERS))
        for store in others:
            self.store.routes.put(KEYS.store(store), encode(StoreRecord(volume=store, flight=f"grpc://{store}")))
        peers = tuple(Peer(store, store, 3) for store in ("main-0", *others))
        self.store.routes.put(KEYS.partition(TABLE, 0).stable, encode(Stable(peers)))
        self.others.hashes = dict.fromkeys(others, "")
        clock = self.store.clock
        healer = ReplicaRepairer(self.service, self.others, heals=heals, clock=clock)
        self.comparer = ReplicaComparer(self.service, healer, seconds=3600, clock=clock)
        await self.comparer.look()
        clock.advance(3600)

    @property
    def group(self) -> Group:
        [group] = self.store.state_machine.groups_of("")
        return group

    async def look(self) -> bool:
        """Let the comparer look, with all the time it takes; whether it compared."""
        before = len(self.group.hashes)
        looking = asyncio.ensure_future(self.comparer.look())
        # Time passes only where it is waited for: a disk may be slow.
        while not looking.done():
            await asyncio.sleep(0.001)
            self.store.clock.advance(0.1)
        await looking
        return len(self.group.hashes) > before

    async def again(self) -> bool:
        self.store.clock.advance(AGAIN_SECONDS)
        return await self.look()

    @property
    def told(self) -> Doubt:
        """What the sidecar was told last."""
        return self.store.sidecar.doubts.get(self.group.number, Doubt(""))

    @property
    def damage(self) -> str:
        return self.group.metadata.damage


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with Store(tmp_path / "store") as store:
        yield Scene(store)


async def test_follower_that_is_alone(scene: Scene) -> None:
    """It is found, found again, built anew, waited for, and counted; then all is well and nothing is compared."""
    await scene.begin("main-1", "main-2")
    scene.others.hashes["main-2"] = WRONG
    assert await scene.look()
    assert scene.others.rebuilt == [], "once may be a mistake"
    assert await scene.again()
    right = next(iter(scene.group.hashes.values()))
    assert scene.others.rebuilt == [("main-2", right)]
    assert scene.others.damaged["main-2"] == 0, "it was waited for"
    assert scene.store.state_machine.counters["healed_replicas"] == 1
    assert await scene.again(), "once more, to see that it is as the others are"
    assert not await scene.again()
    assert len(scene.others.rebuilt) == 1


async def test_difference_that_is_seen_once(scene: Scene) -> None:
    """Nothing is given up for what a second barrier does not say."""
    await scene.begin("main-1", "main-2")
    scene.others.hashes["main-2"] = WRONG
    await scene.look()
    scene.others.hashes |= {"main-2": "", "main-1": WRONG}
    await scene.again()
    assert scene.others.rebuilt == [], "another one differs now"


async def test_leader_that_is_alone_hands_over_first(scene: Scene) -> None:
    """It keeps its rows while it leads, tells its sidecar that it should not, and gives them up when it does not."""
    await scene.begin("main-1", "main-2")
    scene.others.hashes = dict.fromkeys(scene.others.hashes, WRONG)
    await scene.look()
    assert "and most replicas' is 9:bad" in scene.group.comparison_problem
    await turns(lambda: scene.told == Doubt(scene.group.comparison_problem))
    looking = asyncio.ensure_future(scene.again())
    await turns(lambda: scene.told.unfit)
    assert not scene.damage
    [group] = scene.store.sidecar.groups.values()
    group.leading, group.hint = False, "main-1"
    group.tell()
    await looking
    assert "and most replicas' is 9:bad" in scene.damage
    assert scene.store.state_machine.counters["condemnations"] == 1


async def test_leader_that_nobody_relieves(scene: Scene) -> None:
    """It keeps its rows and goes on leading; that they are in doubt stays told."""
    await scene.begin("main-1", "main-2")
    scene.others.hashes = dict.fromkeys(scene.others.hashes, WRONG)
    await scene.look()
    await scene.again()
    assert not scene.damage
    await turns(lambda: scene.told == Doubt(scene.group.comparison_problem))
    assert scene.group.doubt


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"main-1": WRONG}, "of two nobody knows which is right"),
        ({"main-1": WRONG, "main-2": "9:worse"}, "all three differ"),
        ({"main-1": "", "main-2": WRONG, "main-3": WRONG}, "two against two"),
    ],
)
async def test_no_majority(scene: Scene, others: dict[str, str], why: str) -> None:
    """Nobody is touched; who has what is said, in status and to the sidecar, and it is left to people."""
    await scene.begin(*others)
    scene.others.hashes = others
    await scene.look()
    assert not await scene.again(), "an hour is soon enough"
    assert scene.others.rebuilt == [], why
    assert not scene.damage
    assert "no hash of the rows has a majority (main-0 has 0:" in scene.group.doubt
    assert f"; main-1 has {others['main-1'] or '0:'}" in scene.group.doubt
    await turns(lambda: scene.told.detail == scene.group.doubt)


@pytest.mark.parametrize("how", ["away", "damaged", "late"])
async def test_somebody_is_silent(scene: Scene, how: str) -> None:
    """While one is away, being restored or behind, none is given up, however many agree; later it is."""
    await scene.begin("main-1", "main-2", "main-3", "main-4")
    scene.others.hashes["main-4"] = WRONG

    def silence(on: bool) -> None:
        scene.others.away = {"main-1"} if how == "away" and on else set()
        scene.others.damaged["main-1"] = 1_000_000 if how == "damaged" and on else 0
        scene.others.late = {"main-1"} if how == "late" and on else set()

    silence(True)
    for _ in range(3):
        await scene.look()
        assert scene.others.rebuilt == []
        scene.store.clock.advance(AGAIN_SECONDS)
    silence(False)
    await scene.look()
    await scene.again()
    assert [store for store, _ in scene.others.rebuilt] == ["main-4"]


async def test_one_at_a_time(scene: Scene) -> None:
    """Of two that differ one is built anew; the other not before ten minutes have gone by."""
    await scene.begin("main-1", "main-2", "main-3", "main-4")
    scene.others.hashes |= {"main-3": WRONG, "main-4": "9:worse"}
    await scene.look()
    await scene.again()
    assert [store for store, _ in scene.others.rebuilt] == ["main-3"]
    for _ in range(3):
        assert await scene.again()
        assert len(scene.others.rebuilt) == 1
    scene.store.clock.advance(600)
    await scene.look()
    assert [store for store, _ in scene.others.rebuilt] == ["main-3", "main-4"]


async def test_healing_that_is_turned_off(scene: Scene) -> None:
    """What differs is told, and stays as it is."""
    await scene.begin("main-1", "main-2", heals=False)
    scene.others.hashes = dict.fromkeys(scene.others.hashes, WRONG)
    await scene.look()
    assert not await scene.again()
    assert not scene.damage
    assert scene.group.doubt


async def test_verdict_is_the_leaders_to_give(scene: Scene) -> None:
    """Who leads no more says nothing of what it found while it did."""
    await scene.begin("main-1")
    scene.others.hashes["main-1"] = WRONG
    await scene.look()
    assert scene.group.doubt
    [group] = scene.store.sidecar.groups.values()
    group.leading = False
    group.tell()
    await turns(lambda: not scene.store.state_machine.role_of(group.number).leader)
    await scene.look()
    assert scene.group.doubt == ""
    await turns(lambda: scene.told == Doubt(""))


async def test_the_sidecar_hears_of_damage_at_once(scene: Scene) -> None:
    """It need not wait until it asks: whoever met a bad block, the replica must not go on leading."""
    await scene.begin("main-1")
    await scene.store.state_machine.discard(scene.group.number, "bad block")
    await turns(lambda: scene.told.detail == "bad block")
    assert scene.damage == "bad block"

"""A cap of replicas per store is shared by all tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from tests.controller.support import Scene, table

PARTITIONS = 20
IMPOSSIBLE = ("False", "NoFeasiblePlacement")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with Scene() as scene:
        yield scene


async def cap(scene: Scene, replicas: int, **spec: object) -> None:
    """Set every store's cap."""
    wanted = {"maxReplicasPerStore": replicas, **spec}
    await scene.resources.change(StoreCluster, "main", lambda document: document["spec"].update(wanted))
    await scene.pass_time(1)


async def held(scene: Scene, *names: str) -> Counter[str]:
    """Return how many current and future replicas of these tables each store has."""
    views = [await scene.view(partition, name) for name in names for partition in range(PARTITIONS)]
    return Counter(store for view in views for store in {peer.store for peer in view.peers()})


async def test_a_table_takes_what_the_others_leave(scene: Scene) -> None:
    """If one table fills some stores, the next table's replicas go to the others."""
    fast = [{"name": f"main-{number}", "labels": {"disk": "ssd"}} for number in range(3)]
    await cap(scene, 34, overrides=fast)
    selected = ", placement: {storeSelector: {disk: ssd}}"
    await scene.make_table(table("narrow", partitions=PARTITIONS, more=selected), "narrow")
    await scene.make_table(table("wide", partitions=PARTITIONS), "wide")
    assert await held(scene, "narrow") == {"main-0": 20, "main-1": 20, "main-2": 20}
    together = await held(scene, "narrow", "wide")
    assert (together.total(), max(together.values())) == (120, 34)


async def test_a_table_that_does_not_fit_waits_for_room(scene: Scene) -> None:
    """A table without room reports why, and is placed when another table is dropped."""
    await cap(scene, 25)
    await scene.make_table(table("first", partitions=PARTITIONS, more=", undeleteFor: 0s"), "first")
    await scene.apply(table("second", partitions=PARTITIONS))
    await scene.pass_time(2)
    assert (await scene.conditions("second"))["Progressing"] == IMPOSSIBLE
    assert "have room for 40" in await scene.message("Degraded", "second")
    await scene.resources.delete(Table, "first")
    await scene.pass_time(40)
    assert max((await held(scene, "second")).values()) == 15


async def test_tables_that_come_together_do_not_take_the_same_room(scene: Scene) -> None:
    """There is room for two of three tables, and two are placed."""
    await cap(scene, 30)
    names = ("one", "two", "three")
    await scene.apply(*(table(name, partitions=PARTITIONS) for name in names))
    await scene.pass_time(5)
    assert await held(scene, *names) == {f"main-{number}": 30 for number in range(4)}
    assert [(await scene.conditions(name))["Progressing"] == IMPOSSIBLE for name in names].count(True) == 1


async def test_tables_above_a_lowered_cap_stay_as_they_are(scene: Scene) -> None:
    """If nothing else fits, no replica moves, and the status reports why."""
    await cap(scene, 30)
    for name in ("first", "second"):
        await scene.make_table(table(name, partitions=PARTITIONS), name)
    before = await held(scene, "first", "second")
    await cap(scene, 25)
    await scene.pass_time(5)
    assert await held(scene, "first", "second") == before
    assert (await scene.conditions("first"))["Degraded"] == ("True", "NoFeasiblePlacement")
    assert (await scene.conditions("second"))["Degraded"] == ("True", "NoFeasiblePlacement")


async def test_a_lowered_cap_is_kept_by_all_tables_together(scene: Scene) -> None:
    """Replicas above the cap move to a store that joins."""
    await cap(scene, 30)
    for name in ("first", "second"):
        await scene.make_table(table(name, partitions=PARTITIONS), name)
    await scene.come("main-4")
    await cap(scene, 25, stores=5)
    while await scene.arrive("first") + await scene.arrive("second"):
        await scene.pass_time(5)
    assert max((await held(scene, "first", "second")).values()) <= 25

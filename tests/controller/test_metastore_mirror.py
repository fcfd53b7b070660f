"""The controller's in-memory copy of the metastore."""

from __future__ import annotations

import asyncio

from evenkeel.controller.metastore_mirror import QUIET_SECONDS, TIMEOUT_SECONDS, Mirror
from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Event, KeyValue, Put, Txn
from evenkeel.protocol.records import StoreRecord, StoreState, encode
from evenkeel.reconcile.table_snapshot import read_table
from evenkeel.runtime.clock import VirtualClock
from tests.controller.support import KEYS, Scene
from tests.kube_operator.support import turns


def kv(key: str, value: bytes = b"1", revision: int = 1) -> KeyValue:
    return KeyValue(key, value, revision, revision, 1)


async def filled(*kvs: KeyValue) -> Mirror:
    clock = VirtualClock()
    metastore = MemoryMetastore(clock=clock)
    for found in kvs:
        await metastore.txn(Txn(success=(Put(found.key, found.value),)))
    mirror = Mirror(KEYS, clock)
    mirror.fill(await metastore.range(KEYS.root))
    return mirror


async def test_a_read_has_the_keys_of_one_table_and_all_stores() -> None:
    """A read has the table's keys and the leadership inhibitions, but no neighbours by name and no reports."""
    own = [KEYS.table("a.1"), KEYS.partition("a.1", 3).stable, KEYS.leader("a.1", 3), KEYS.plan_head("a.1")]
    own.append(KEYS.inhibition("main-0"))
    others = [KEYS.table("a.12"), KEYS.partition("a.12", 3).stable, KEYS.load("main-0"), KEYS.load("main-1")]
    store = kv(KEYS.store("main-0"), encode(StoreRecord(volume="v")))
    state = kv(KEYS.store_state("main-0"), encode(StoreState(volume="v")))
    mirror = await filled(*map(kv, own + others), store, state)
    found = mirror.read(read_table(KEYS, "a.1").prefixes)
    assert sorted(found.kvs) == sorted(own)
    assert found.stores is not None
    assert found.stores.names == {"main-0"}
    assert {entry.key for entry in mirror.assignments()} == {own[1], others[1]}


async def test_stores_are_read_again_only_where_they_changed() -> None:
    """A thousand records are decoded when one of them changes, not for every reconciliation."""
    mirror = await filled(kv(KEYS.store("main-0"), encode(StoreRecord(volume="v"))))
    before = mirror.stores()
    mirror.apply(Event(KEYS.table("a.1"), kv(KEYS.table("a.1"), revision=7), 7))
    assert mirror.stores() is before
    mirror.apply(Event(KEYS.store("main-0"), None, 8))
    assert mirror.stores().names == frozenset()


async def test_a_read_waits_for_what_was_written() -> None:
    """A read waits until the watch delivers the write, up to a timeout, and not at all without a watch."""
    mirror = await filled(kv(KEYS.table("a.1")))
    clock = mirror._clock
    assert isinstance(clock, VirtualClock)
    waiting = [asyncio.ensure_future(mirror.reached(revision)) for revision in (5, 9)]
    await asyncio.sleep(0)
    mirror.advance(6)
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, False]
    clock.advance(TIMEOUT_SECONDS)
    assert await asyncio.gather(*waiting) == [True, False]
    later = asyncio.ensure_future(mirror.reached(9))
    await turns()
    assert not later.done()
    mirror.advance(9)
    assert await later
    mirror.clear()
    assert not await mirror.reached(1)


async def test_a_reconciliation_waits_while_the_watch_makes_progress() -> None:
    """It starts with everything that has happened before; a quiet watch has caught up."""
    mirror = await filled(kv(KEYS.table("a.1")))
    clock = mirror._clock
    assert isinstance(clock, VirtualClock)
    following = asyncio.ensure_future(mirror.follow(100))
    for revision in range(10, 40, 10):
        clock.advance(QUIET_SECONDS / 2)
        mirror.advance(revision)
        await turns()
        assert not following.done()
    clock.advance(QUIET_SECONDS)
    await following
    await mirror.follow(100)
    following = asyncio.ensure_future(mirror.follow(101))
    await turns()
    assert not following.done()
    mirror.advance(101)
    await following


async def test_one_tables_change_does_not_touch_others(scene: Scene) -> None:
    """A table's keys and status cause no reconciliation of another table."""
    await scene.make_table()
    await scene.make_table(name="other")
    reconciled: list[str] = []
    reconcile = scene.controller._tables.reconcile

    async def counted(name: str) -> float:
        reconciled.append(name)
        return await reconcile(name)

    scene.controller._tables.reconcile = counted  # type: ignore[method-assign]
    await scene.change(replicas=4)
    await scene.pass_time(1)
    while await scene.arrive() or await scene.obey():
        await scene.pass_time(1)
    await scene.pass_time(5)
    assert set(reconciled) == {"orders"}
    assert len(reconciled) <= 12


async def test_reports_reconcile_only_the_tables_they_name(scene: Scene) -> None:
    """A thousand stores report constantly, mostly about other tables."""
    for name in ("orders", "other"):
        await scene.make_table(name=name)
        await scene.change(name, replicas=4)
    await scene.pass_time(5)
    reconciled: list[str] = []
    reconcile = scene.controller._tables.reconcile

    async def counted(name: str) -> float:
        reconciled.append(name)
        return await reconcile(name)

    scene.controller._tables.reconcile = counted  # type: ignore[method-assign]
    await scene.report("main-0", filling={f"{await scene.key('other')}/0": {"main-3": 0.5}})
    await scene.pass_time(5)
    assert set(reconciled) == {"other"}

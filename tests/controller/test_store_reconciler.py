"""Stores under a controller: lost, replaced, drained, scaled away; and the StoreCluster's status."""

from __future__ import annotations

import pytest

from evenkeel.controller import store_reconciler
from evenkeel.errors import UnreachableError
from evenkeel.metastore.metastore_api import Delete, Snapshot, Txn
from evenkeel.model.storecluster import StoreCluster, StoreDrain
from evenkeel.protocol.records import StoreSettings, StoreState, decode
from tests.controller.support import KEYS, Scene, conditions_of, store_cluster, table

FAST = ", movement: {lostAfter: 2m}"


async def state(scene: Scene, name: str) -> StoreState | None:
    kv = await scene.metastore.get(KEYS.store_state(name))
    return None if kv is None else decode(StoreState, kv.value, key=kv.key)


async def given_up(scene: Scene, name: str) -> bool:
    found = await state(scene, name)
    return found is not None and bool(found.replace_in)


async def drains(scene: Scene) -> list[StoreDrain]:
    status = (await scene.cluster()).status
    assert status is not None
    return list(status.drains)


async def arrive_all(scene: Scene, *names: str) -> None:
    while any([await scene.arrive(name) for name in names or ("orders",)]):
        await scene.pass_time(0.5)


async def test_a_lost_stores_replicas_are_replaced_after_each_tables_delay(scene: Scene) -> None:
    """A table with a short delay moves first, without any event."""
    await scene.make_table()
    await scene.make_table(table("fast", more=FAST), "fast")
    await scene.go("main-3")
    await scene.pass_time(118, step=1)
    assert not await given_up(scene, "main-3")
    await scene.pass_time(5)
    fast = [(await scene.view(p, "fast")).pending for p in range(8)]
    slow = [(await scene.view(p)).pending for p in range(8)]
    assert any(fast)
    assert not any(slow)
    await arrive_all(scene, "fast")
    await scene.pass_time(485, step=1)
    assert any([(await scene.view(p)).pending for p in range(8)])


async def test_a_jump_of_the_wall_clock_replaces_no_store(scene: Scene) -> None:
    """A jump of the wall clock does not count: delays are measured with the monotonic clock."""
    await scene.make_table(table(more=FAST))
    for days in (2, -3):
        await scene.go("main-3")
        await scene.pass_time(5, step=1)
        scene.wall_ahead += days * 86_400.0
        await scene.pass_time(110, step=1)
        assert not await given_up(scene, "main-3")
        await scene.come("main-3")
        await scene.pass_time(5, step=1)
    await scene.go("main-3")
    await scene.pass_time(125, step=1)
    assert await given_up(scene, "main-3")


async def test_a_store_that_returns_costs_nothing(scene: Scene) -> None:
    """Its leaderships are handed back, and no plan is made."""
    await scene.make_table()
    await scene.go("main-3")
    await scene.pass_time(300, step=1)
    assert (await scene.conditions())["Degraded"][0] == "True"
    await scene.come("main-3")
    await scene.pass_time(700, step=5)
    status = (await scene.table()).status
    assert status is not None
    assert (status.plan, conditions_of(status)["Degraded"][0]) == (1, "False")


async def test_time_without_a_check_does_not_count(scene: Scene) -> None:
    """A controller that was stopped or could not reach etcd restarts the delays."""
    await scene.make_table(table(more=FAST))
    await scene.go("main-3")
    await scene.pass_time(100, step=1)
    await scene.stop()
    scene.clock.advance(3600)
    scene.controller = scene.make_controller("second")
    scene.start()
    await scene.pass_time(110, step=1)
    assert not await given_up(scene, "main-3")
    await scene.pass_time(15, step=1)
    assert await given_up(scene, "main-3")


async def test_an_unreachable_etcd_restarts_the_delay(scene: Scene) -> None:
    """A failed check does not count as a check."""
    await scene.make_table(table(more=FAST))
    await scene.go("main-3")
    await scene.pass_time(60, step=1)
    range_ = scene.metastore.range

    async def fails(prefix: str, *, revision: int = 0) -> Snapshot:
        if prefix.startswith(KEYS.root):
            raise UnreachableError("no etcd endpoint answers")
        return await range_(prefix, revision=revision)

    scene.metastore.range = fails  # type: ignore[method-assign]
    await scene.pass_time(100, step=1)
    scene.metastore.range = range_  # type: ignore[method-assign]
    await scene.pass_time(60, step=1)
    assert not await given_up(scene, "main-3")
    await scene.pass_time(70, step=1)
    assert await given_up(scene, "main-3")


async def test_a_new_table_does_not_go_to_a_store_that_is_long_gone(scene: Scene) -> None:
    """Stores are decided for a table before it is placed."""
    await scene.make_table(table(more=FAST))
    await scene.go("main-3")
    await scene.pass_time(900, step=5)
    await scene.apply(table("late"))
    await scene.pass_time(1)
    named = {peer.store for p in range(8) for peer in (await scene.view(p, "late")).peers()}
    assert named == {"main-0", "main-1", "main-2"}


async def test_a_drain_empties_the_store_and_reports_its_progress(scene: Scene) -> None:
    """Replicas leave and the percentage follows; ending the drain lets them return."""
    await scene.make_table(table(partitions=16))
    await scene.annotate(StoreCluster, "main", drain="main-2")
    await scene.pass_time(3)
    [drain] = await drains(scene)
    assert (drain.store, drain.percentage) == ("main-2", 0)
    whole = drain.replicas_left
    assert whole == 12
    await scene.arrive(only=6)
    await scene.pass_time(5)
    [drain] = await drains(scene)
    assert (drain.replicas_left, drain.percentage) == (6, 50)
    await arrive_all(scene)
    await scene.pass_time(5)
    assert await drains(scene) == [StoreDrain(store="main-2", percentage=100)]
    await scene.annotate(StoreCluster, "main", drain="")
    await scene.pass_time(5)
    assert await drains(scene) == []
    assert await scene.arrive() > 0


async def test_the_bytes_of_a_drain_are_those_of_all_its_replicas(scene: Scene) -> None:
    """While one size is unknown, so are the bytes left; the total is remembered."""
    await scene.make_table()
    key, sizes = await scene.key(), dict.fromkeys(range(8), 1000)
    await scene.report_sizes("main-0", key, sizes)
    await scene.annotate(StoreCluster, "main", drain="main-2")
    await scene.pass_time(3)
    [drain] = await drains(scene)
    whole = 1000 * drain.replicas_left
    assert (drain.bytes_left, drain.bytes_total) == (whole, whole)
    await scene.report_sizes("main-0", key, {0: 1000})
    await scene.pass_time(40, step=1)
    [drain] = await drains(scene)
    assert (drain.bytes_left, drain.bytes_total) == (None, whole)


async def test_what_blocks_a_drain_is_reported(scene: Scene) -> None:
    """A store that cannot drain reports why."""
    await scene.make_table(table(replicas=4))
    await scene.annotate(StoreCluster, "main", drain="main-2")
    await scene.pass_time(5)
    await scene.pass_time(30, step=1)
    [drain] = await drains(scene)
    assert (drain.replicas_left, drain.percentage) == (8, 0)
    assert "replicas 4 need 4 stores but only 3 are usable: main-2 is draining" in drain.reason
    assert conditions_of((await scene.cluster()).status)["Ready"] == ("True", "AsExpected")


async def test_scaling_down_below_what_a_table_needs_is_refused(scene: Scene) -> None:
    """Within seconds the StoreCluster is not Ready in its generation; the table stays available, and both recover."""
    await scene.make_table(table(replicas=4))
    await scene.apply(store_cluster(3))
    await scene.pass_time(5)
    cluster = await scene.cluster()
    assert cluster.status is not None
    assert (conditions_of(cluster.status)["Ready"], cluster.status.observed_generation) == (
        ("False", "NoFeasiblePlacement"),
        cluster.metadata.generation,
    )
    conditions = await scene.conditions()
    assert (conditions["Available"], conditions["Ready"]) == (("True", "AsExpected"), ("False", "NoFeasiblePlacement"))
    await scene.change(replicas=3)
    await scene.pass_time(5)
    status = (await scene.cluster()).status
    assert (conditions_of(status)["Ready"], conditions_of(status)["Progressing"]) == (
        ("True", "AsExpected"),
        ("True", "Rebalancing"),
    )
    await scene.change(replicas=4)
    await scene.pass_time(3)
    assert conditions_of((await scene.cluster()).status)["Ready"] == ("False", "NoFeasiblePlacement")


async def test_scaling_down_drains_then_forgets(scene: Scene) -> None:
    """A store that is scaled away drains first; afterwards nothing is left of it, and it is not lost."""
    await scene.make_table()
    await scene.apply(store_cluster(3))
    await scene.pass_time(1)
    found = await state(scene, "main-3")
    assert found is not None
    assert found.draining
    await arrive_all(scene)
    await scene.pass_time(1)
    await scene.go("main-3")
    await scene.pass_time(3)
    assert await state(scene, "main-3") is None
    status = (await scene.cluster()).status
    assert status is not None
    assert (status.stores, status.lost, conditions_of(status)["Ready"]) == (3, (), ("True", "AsExpected"))


async def test_scaling_up_in_the_middle_of_scaling_down(scene: Scene) -> None:
    """Replicas that have left return, and the others stay."""
    await scene.make_table()
    await scene.apply(store_cluster(3))
    await scene.pass_time(1)
    assert await scene.arrive(only=3) == 3
    await scene.apply(store_cluster(5))
    await scene.come("main-4")
    await scene.pass_time(1)
    found = await state(scene, "main-3")
    assert found is not None
    assert not found.draining
    await arrive_all(scene)
    await scene.pass_time(5)
    assert (await scene.conditions())["Balanced"] == ("True", "AsExpected")
    held = {peer.store for p in range(8) for peer in (await scene.view(p)).peers()}
    assert held == {f"main-{n}" for n in range(5)}


async def test_overrides_take_effect_while_stores_run(scene: Scene) -> None:
    """A store of weight 0 is emptied, and its state has the override."""
    await scene.make_table()
    await scene.apply(store_cluster(4, ", overrides: [{name: main-1, weight: 0, zone: b}]"))
    await scene.pass_time(1)
    found = await state(scene, "main-1")
    assert found is not None
    assert found.record is not None
    assert (found.record.weight, found.record.zone) == (0.0, "b")
    await arrive_all(scene)
    assert "main-1" not in {peer.store for p in range(8) for peer in (await scene.view(p)).peers()}


async def test_a_bug_in_reconciling_the_stores_is_reported(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The StoreCluster reports it, and tables are still reconciled."""
    await scene.make_table()

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(store_reconciler, "next_replacement", fails)
    await scene.change(replicas=4)
    await scene.pass_time(3)
    assert conditions_of((await scene.cluster()).status)["Degraded"] == ("True", "InternalError")
    assert await scene.arrive() == 8


async def test_throttles_and_thresholds_are_published_for_running_stores(scene: Scene) -> None:
    """Settings are a key, written when the spec changes and when the key was removed."""

    async def published() -> StoreSettings | None:
        kv = await scene.metastore.get(KEYS.settings)
        return None if kv is None else decode(StoreSettings, kv.value, key=kv.key)

    await scene.make_table()
    assert await published() == StoreSettings()
    handling = "{retriesBeforeDegraded: 2, longestRetry: 5s, stalledAfter: 1m, stepDownWhenStalled: true}"
    throttles = "{bytesPerSecond: 10M, maxConcurrentMoves: 7}"
    await scene.apply(store_cluster(4, more=f", throttles: {throttles}, failureHandling: {handling}"))
    await scene.pass_time(5)
    wanted = StoreSettings(
        bytes_per_second=1e7,
        snapshots_at_once=7,
        degraded_after=2,
        longest_retry_seconds=5.0,
        stalled_seconds=60.0,
        step_down_when_stalled=True,
    )
    assert await published() == wanted
    await scene.metastore.txn(Txn(success=(Delete(KEYS.settings),)))
    await scene.pass_time(5)
    assert await published() == wanted

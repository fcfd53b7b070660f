"""Tables under a controller: created, rebalanced, dropped, paused, and refused with a reason."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from evenkeel import driver
from evenkeel.controller import table_reconciler
from evenkeel.local.local_resources import ROOT
from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.rebalancers import rebalancer_runner
from evenkeel.reconcile import table_status
from evenkeel.runtime.log_setup import set_up_logs
from tests.controller.support import KEYS, Scene, conditions_of, store_cluster, table

WELL = {
    "Ready": ("True", "AsExpected"),
    "Available": ("True", "AsExpected"),
    "Progressing": ("False", "AsExpected"),
    "Balanced": ("True", "AsExpected"),
    "Degraded": ("False", "AsExpected"),
}


async def targets(scene: Scene, name: str = "orders") -> list[set[str]]:
    """Return the current or future stores of every partition."""
    found = []
    for partition in range((await scene.table(name)).spec.partitions):
        view = await scene.view(partition, name)
        assert view.stable is not None
        found.append({peer.store for peer in (view.pending.last if view.pending is not None else view.stable.peers)})
    return found


async def test_a_table_is_created_and_described(scene: Scene) -> None:
    """A table is created from its YAML, is ready once it has leaders, and shows its partitions."""
    await scene.apply(table(partitions=70))
    await scene.pass_time(0.5)
    assert await scene.conditions() == WELL | dict.fromkeys(("Ready", "Available"), ("False", "Reconciling"))
    await scene.arrive()
    await scene.pass_time(3)
    assert await scene.conditions() == WELL
    found = await scene.resources.all_of(PartitionAssignment)
    assert [(piece.metadata.name, len(piece.status.partitions if piece.status else ())) for piece in found] == [
        ("orders-0", 64),
        ("orders-1", 6),
    ]
    cluster = (await scene.cluster()).status
    assert cluster is not None
    assert (cluster.tables, conditions_of(cluster)["Ready"]) == (1, ("True", "AsExpected"))


async def test_what_is_logged_names_table_and_plan(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan is logged once, and every line of a table's reconciliation has the table and the plan."""
    set_up_logs(level="info", form="json")
    await scene.make_table(table())
    await scene.change(replicas=4)
    await scene.pass_time(3)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    plans = [line for line in lines if line["event"].startswith("carrying out plan")]
    assert [(line["table"], line["plan"], line["level"]) for line in plans] == [
        ("orders", 1, "info"),
        ("orders", 2, "info"),
    ]
    assert {line["store_cluster"] for line in plans} == {"default/main"}


async def test_a_table_is_scaled(scene: Scene) -> None:
    """A changed spec makes a new plan; partitions follow as others finish, and the status shows it."""
    await scene.make_table(table(partitions=40))
    await scene.change(replicas=4)
    await scene.pass_time(3)
    shown = (await scene.table()).status
    assert shown is not None
    assert (shown.plan, shown.moving, shown.replicas) == (2, 16, 3)
    assert conditions_of(shown)["Balanced"] == ("False", "Rebalancing")
    arrived = 0
    while moved := await scene.arrive():
        arrived += moved
        await scene.pass_time(0.5)
    await scene.pass_time(3)
    assert arrived == 40
    assert await scene.conditions() == WELL
    assert await targets(scene) == [{f"main-{n}" for n in range(4)}] * 40


async def test_leaderships_are_handed_over_to_preferred_stores(scene: Scene) -> None:
    """Orders are written for partitions with another leader, also for those that a user chose."""
    await scene.make_table()
    assert await scene.obey() == 0
    voters = sorted((await targets(scene))[3])
    led = (await scene.slice()).status
    assert led is not None
    other = next(store for store in voters if store != led.partitions[3].leader)
    await scene.annotate(Table, "orders", leaders=f"3={other}")
    await scene.pass_time(1)
    assert await scene.obey() == 1
    await scene.pass_time(3)
    shown = (await scene.slice()).status
    assert shown is not None
    assert shown.partitions[3].leader == other
    assert await scene.obey() == 0


async def test_a_table_is_dropped(scene: Scene) -> None:
    """A table is removed when every store has confirmed; then no key and no resource of it is left."""
    await scene.make_table(table(more=", undeleteFor: 0s"))
    await scene.make_table(name="other")
    await scene.resources.delete(Table, "orders")
    await scene.pass_time(1)
    assert await scene.kvs(KEYS.partition_prefixes(await scene.key()).stable) == ()
    await scene.confirm_drops("main-0", "main-1", "main-2")
    await scene.pass_time(1)
    assert await scene.resources.get(Table, "orders") is not None
    await scene.confirm_drops("main-3")
    await scene.pass_time(1)
    left = [kv.key for prefix in (ROOT, KEYS.root) for kv in await scene.kvs(prefix) if "orders" in kv.key]
    assert left == []
    assert await scene.conditions("other") == WELL
    await scene.make_table()
    assert await scene.conditions() == WELL


async def test_a_dropped_table_does_not_wait_for_a_store_that_was_taken_away(scene: Scene) -> None:
    """A table's drop does not wait for a lost store that is then scaled away."""
    await scene.make_table(table(more=", undeleteFor: 0s"))
    await scene.go("main-3")
    await scene.pass_time(1)
    await scene.resources.delete(Table, "orders")
    await scene.pass_time(1)
    await scene.confirm_drops("main-0", "main-1", "main-2")
    await scene.pass_time(40)
    assert await scene.resources.get(Table, "orders") is not None
    await scene.apply(store_cluster(3))
    await scene.pass_time(1)
    assert await scene.resources.get(Table, "orders") is None


async def release(scene: Scene) -> None:
    """Force-delete the table; its deletion has the real wall-clock time, not the scene's."""
    await scene.resources.delete(Table, "orders")
    await scene.annotate(Table, "orders", release="true")


@pytest.mark.parametrize("scene", [None], indirect=True, ids=["nothing-is-kept"])
async def test_a_force_deleted_table_does_not_wait_for_lost_stores(scene: Scene) -> None:
    """A force-deleted table does not wait for lost stores; it waits for available ones during the grace period."""
    await scene.make_table()
    await scene.go("main-3")
    await release(scene)
    await scene.pass_time(1)
    await scene.confirm_drops("main-0", "main-1")
    await scene.pass_time(1)
    assert await scene.resources.get(Table, "orders") is not None
    await scene.confirm_drops("main-2")
    await scene.pass_time(1)
    assert await scene.resources.get(Table, "orders") is None
    assert [kv.key for kv in await scene.kvs(KEYS.root) if "orders" in kv.key] == []


@pytest.mark.parametrize("scene", [None], indirect=True, ids=["nothing-is-kept"])
async def test_a_force_deleted_table_waits_half_a_minute_at_most(scene: Scene) -> None:
    """An available store that never drops the table no longer blocks it."""
    await scene.make_table()
    await release(scene)
    await scene.pass_time(28)
    assert await scene.resources.get(Table, "orders") is not None
    await scene.pass_time(4)
    assert await scene.resources.get(Table, "orders") is None


async def pause(scene: Scene, how: str, value: Any) -> None:
    if how == "spec":
        await scene.change(paused=value)
    elif how == "annotation":
        await scene.annotate(Table, "orders", paused="true" if value else "false")
    elif how == "cluster":
        await scene.resources.change(StoreCluster, "main", lambda document: document["spec"].update(paused=value))
    else:
        await scene.annotate(StoreCluster, "main", paused="true" if value else "false")


@pytest.mark.parametrize("how", ["spec", "annotation", "cluster", "cluster's annotation"])
async def test_a_paused_table_finishes_what_is_under_way_and_begins_nothing(scene: Scene, how: str) -> None:
    """Moves in progress finish, withheld ones wait, and a changed spec is applied after the pause."""
    await scene.make_table(table(partitions=40))
    await scene.change(replicas=4)
    await scene.pass_time(3)
    await pause(scene, how, True)
    await scene.pass_time(3)
    await scene.lead(0, "main-1")
    assert await scene.arrive() == 16
    await scene.pass_time(3)
    assert await scene.arrive() == 0
    assert (await scene.conditions())["Progressing"] == ("False", "Paused")
    assert (await scene.conditions())["Balanced"] == ("False", "Paused")
    await scene.change(replicas=2)
    await scene.pass_time(3)
    assert await scene.arrive() + await scene.obey() == 0
    await pause(scene, how, False)
    await scene.pass_time(3)
    shown = (await scene.table()).status
    assert shown is not None
    assert (shown.plan, shown.moving) == (3, 16)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "more replicas than stores": (
        {"replicas": 5},
        "NoFeasiblePlacement",
        "replicas 5 need 5 stores but only 4 are usable; add a store or lower replicas",
    ),
    "a class that does not import": (
        {"rebalancer": {"mode": "UserDefined", "class": "nowhere.to_be:Found"}},
        "RebalancerFailed",
        "class nowhere.to_be:Found",
    ),
    "sets that name no store": (
        {"rebalancer": {"mode": "Customized"}, "replicas": 2},
        "RebalancerFailed",
        "has 3 stores; allowed: 2",
    ),
    "caps that are too low": (
        {"placement": {"maxPerStore": 2}},
        "NoFeasiblePlacement",
        "do not fit: the 4 usable stores have room for 8",
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: str(case).replace(" ", "-"))
async def test_an_impossible_spec_is_reported_and_the_last_valid_state_stays(scene: Scene, case: str) -> None:
    """The condition reports the problem, replicas stay, and a valid spec is enough to continue."""
    spec, reason, words = REFUSED[case]
    await scene.make_table()
    before = await targets(scene)
    await scene.change(**spec)
    await scene.pass_time(3)
    assert await scene.conditions() == WELL | {
        "Ready": ("False", reason),
        "Progressing": ("False", reason),
        "Balanced": ("False", reason),
        "Degraded": ("True", reason),
    }
    assert words in await scene.message("Degraded")
    assert await targets(scene) == before
    good: dict[str, Any] = {"replicas": 3, "rebalancer": {}, "placement": {}}
    await scene.change(**good)
    await scene.pass_time(3)
    assert await scene.conditions() == WELL


async def test_a_shrinking_schema_is_refused_even_if_admission_let_it_pass(scene: Scene) -> None:
    """If admission let the change pass, the table's record in the metastore prevents it."""
    await scene.make_table()
    record = await scene.metastore.get(KEYS.table(await scene.key()))
    table_key = f"{ROOT}Table/default/orders"
    kv = await scene.metastore.get(table_key)
    assert kv is not None
    smaller = kv.value.replace(b',{"name":"x","type":"string"}', b"").replace(b'"generation":1', b'"generation":2')
    assert smaller != kv.value
    await scene.put(table_key, smaller)
    await scene.pass_time(3)
    assert (await scene.conditions())["Degraded"] == ("True", "SpecInvalid")
    assert "column x must stay at position 1" in await scene.message("Degraded")
    assert await scene.metastore.get(KEYS.table(await scene.key())) == record


async def test_the_plan_before_an_invalid_spec_continues(scene: Scene) -> None:
    """Withheld partitions still reach the last valid plan's targets."""
    await scene.make_table(table(partitions=40))
    await scene.change(replicas=4)
    await scene.pass_time(3)
    await scene.change(replicas=9)
    await scene.pass_time(3)
    arrived = 0
    while moved := await scene.arrive():
        arrived += moved
        await scene.pass_time(0.5)
    assert arrived == 40
    assert await targets(scene) == [{f"main-{n}" for n in range(4)}] * 40


async def test_one_invalid_table_does_not_block_others(scene: Scene) -> None:
    """Tables that cannot be placed or read are Degraded, each for its own reason; the others continue."""
    await scene.make_table()
    await scene.make_table(name="damaged")
    stable = KEYS.partition(await scene.key("damaged"), 3).stable
    await scene.put(stable, b"nonsense")
    await scene.apply(table("greedy", replicas=9))
    await scene.put(f"{ROOT}Table/default/broken", b'{"kind": "Table"}')
    await scene.change(replicas=4)
    await scene.pass_time(3)
    assert await scene.arrive() == 8
    await scene.pass_time(3)
    assert await scene.conditions() == WELL
    assert (await scene.conditions("greedy"))["Ready"] == ("False", "NoFeasiblePlacement")
    assert (await scene.conditions("damaged"))["Degraded"] == ("True", "MalformedRecord")
    assert stable in await scene.message("Degraded", "damaged")


async def test_a_store_key_that_cannot_be_read_is_named(scene: Scene) -> None:
    """Stores and tables name the malformed key, and recover once it is removed."""
    await scene.make_table()
    await scene.put(KEYS.store("main-9"), b"nonsense")
    await scene.pass_time(3)
    assert (await scene.conditions())["Degraded"] == ("True", "MalformedRecord")
    assert conditions_of((await scene.cluster()).status)["Degraded"] == ("True", "MalformedRecord")
    await scene.delete(KEYS.store("main-9"))
    await scene.pass_time(3)
    assert await scene.conditions() == WELL
    assert conditions_of((await scene.cluster()).status)["Degraded"] == ("False", "AsExpected")


async def test_a_bug_fails_the_reconciliation_of_one_table_only(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception is in the table's status, and the controller continues."""
    await scene.make_table()
    await scene.make_table(name="other")
    describe = table_status.table_status

    def fail(found: Table, *args: Any, **known: Any) -> Any:
        if found.metadata.name == "orders":
            raise ZeroDivisionError("a bug")
        return describe(found, *args, **known)

    monkeypatch.setattr(table_reconciler, "table_status", fail)
    for name in ("orders", "other"):
        await scene.change(name, replicas=4)
    await scene.pass_time(3)
    assert (await scene.conditions())["Degraded"] == ("True", "InternalError")
    assert "ZeroDivisionError: a bug" in await scene.message("Degraded")
    assert await scene.arrive("other") == 8


async def test_a_slow_rebalancer_delays_only_its_own_table(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one table's rebalancer runs, other tables are planned and stores are decided."""
    await scene.make_table()
    await scene.make_table(name="other")
    thinking, enough = asyncio.Event(), asyncio.Event()
    rebalance = rebalancer_runner.rebalance

    async def slow(view: Any, **given: Any) -> Any:
        if view.name == "orders":
            thinking.set()
            await enough.wait()
        return await rebalance(view, **given)

    monkeypatch.setattr(driver, "rebalance", slow)
    await scene.change(replicas=4)
    scene.clock.advance(1)
    await thinking.wait()
    await scene.change("other", replicas=4)
    await scene.go("main-3")
    for _ in range(20):
        scene.clock.advance(0.2)
        for _ in range(200):
            await asyncio.sleep(0)
    while (await scene.view(0, "other")).pending is None:  # noqa: ASYNC110 - its rebalancer thinks in a thread
        await asyncio.sleep(0)
    assert (await scene.view(0)).pending is None
    lost = (await scene.cluster()).status
    assert lost is not None
    assert lost.lost == ("main-3",)
    enough.set()
    await scene.pass_time(3)
    assert (await scene.view(0)).pending is not None


async def test_without_its_store_cluster_a_table_waits(scene: Scene) -> None:
    """A missing StoreCluster is reported; nothing is planned or removed."""
    await scene.make_table()
    key = f"{ROOT}StoreCluster/default/main"
    kv = await scene.metastore.get(key)
    assert kv is not None
    await scene.metastore.txn(Txn(success=(Delete(key),)))
    await scene.change(replicas=4)
    await scene.pass_time(3)
    assert (await scene.conditions())["Degraded"] == ("True", "StoreClusterMissing")
    assert (await scene.view(0)).pending is None
    await scene.metastore.txn(Txn(success=(Put(key, kv.value),)))
    await scene.pass_time(3)
    assert (await scene.view(0)).pending is not None

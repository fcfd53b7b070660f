"""The controller's epoch, unreachable dependencies, and its load when idle."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from evenkeel.controller.controller_context import ControllerContext
from evenkeel.controller.status_writer import SETTLE_SECONDS, STATUS_SECONDS, StatusWriter
from evenkeel.errors import AuthenticationError, FencedError, MetastoreError, UnreachableError
from evenkeel.local.local_resources import ClusterResources
from evenkeel.metastore.metastore_api import KeyValue, Snapshot, Txn, TxnResult, WatchBatch
from evenkeel.metastore.operator_epoch import acquire_epoch
from evenkeel.model.conditions import Reason, condition, merge_conditions
from evenkeel.model.table import Table
from evenkeel.protocol.records import StoreState, decode
from tests.controller.support import KEYS, Scene, conditions_of, table


@contextmanager
def away(scene: Scene, *prefixes: str, why: type[MetastoreError] = UnreachableError) -> Iterator[None]:
    """Make everything under these prefixes unreachable; watches end."""
    metastore = scene.metastore
    range_, txn, watch = metastore.range, metastore.txn, metastore.watch

    def check(key: str) -> None:
        if key.startswith(prefixes):
            raise why("no etcd endpoint answers")

    async def broken_range(prefix: str, *, revision: int = 0) -> Snapshot:
        check(prefix)
        return await range_(prefix, revision=revision)

    async def broken_txn(given: Txn) -> TxnResult:
        for op in given.success:
            check(op.key)
        return await txn(given)

    async def broken_watch(prefix: str, *, after: Snapshot) -> AsyncIterator[WatchBatch]:
        check(prefix)
        async for batch in watch(prefix, after=after):
            yield batch

    replaced: Any = metastore
    replaced.range, replaced.txn, replaced.watch = broken_range, broken_txn, broken_watch
    try:
        yield
    finally:
        del replaced.range, replaced.txn, replaced.watch


@contextmanager
def written(scene: Scene) -> Iterator[Counter[str]]:
    """Return what is written in the block, by kind."""
    before, found = Counter(scene.metastore.writes), Counter[str]()
    yield found
    found.update(scene.metastore.writes - before)


# Quiet


async def test_an_idle_controller_writes_nothing(scene: Scene) -> None:
    """Neither its own statuses nor its resyncs cause writes: none in an hour."""
    await scene.make_table()
    await scene.make_table(name="other")
    with written(scene) as found:
        await scene.pass_time(3600, step=5)
    assert found == Counter()


async def test_an_idle_controller_sends_few_requests(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table and stores are reconciled once per resync, which reads only the epoch and the metastore's identity."""
    await scene.make_table()
    asked = Counter[str]()
    get, range_ = scene.metastore.get, scene.metastore.range

    async def counted_get(key: str) -> KeyValue | None:
        asked[key] += 1
        return await get(key)

    async def counted_range(prefix: str, *, revision: int = 0) -> Snapshot:
        asked[prefix] += 1
        return await range_(prefix, revision=revision)

    monkeypatch.setattr(scene.metastore, "get", counted_get)
    monkeypatch.setattr(scene.metastore, "range", counted_range)
    await scene.pass_time(300, step=1)
    own = {key: times for key, times in asked.items() if key.startswith(KEYS.root)}
    assert own == {KEYS.epoch: 10 + 10, KEYS.adoption: 10}


async def test_a_burst_of_events_is_few_statuses(scene: Scene) -> None:
    """Each status is written at most every few seconds, however often partitions change, and ends up correct."""
    await scene.make_table(table(partitions=40))
    await scene.change(replicas=4)
    with written(scene) as found:
        for _ in range(40):
            await scene.pass_time(0.2)
            await scene.arrive(only=1)
    assert 2 <= found["Table"] <= 1 + 8 / STATUS_SECONDS
    assert found["PartitionAssignment"] <= 1 + 8 / STATUS_SECONDS
    assert found["RebalancePlan"] <= 2 + 8 / STATUS_SECONDS
    await scene.pass_time(STATUS_SECONDS + 1)
    status = (await scene.table()).status
    assert status is not None
    assert (status.moving, status.replicas) == (0, 4)


async def test_store_reports_reconcile_a_table_only_while_replicas_move(scene: Scene) -> None:
    """The progress of a copy is shown while it runs; reports of an idle table reconcile nothing."""
    await scene.make_table()
    with written(scene) as found:
        for size in range(20):
            await scene.report("main-0", log_bytes=size)
            await scene.pass_time(0.5)
    assert found == Counter(load=20)
    await scene.change(replicas=4)
    await scene.pass_time(3)
    view = await scene.view(0)
    assert view.pending is not None
    assert view.stable is not None
    [coming] = {peer.store for peer in view.pending.last} - {peer.store for peer in view.stable.peers}
    await scene.report("main-0", filling={f"{await scene.key()}/0": {coming: 0.5}})
    await scene.pass_time(5)
    status = (await scene.slice()).status
    assert status is not None
    assert status.partitions[0].progress == 50


# In charge


async def test_another_controller_takes_over(scene: Scene) -> None:
    """The first controller ends with FencedError when a second takes the epoch, and the second continues its work."""
    await scene.make_table()
    first = scene.task
    assert first is not None
    scene.controller = scene.make_controller("second")
    scene.start()
    await scene.rest()
    with pytest.raises(FencedError, match=r"first no longer holds .*second"):
        await first
    await scene.change(replicas=4)
    await scene.pass_time(3)
    assert await scene.arrive() == 8


@pytest.mark.parametrize("what", ["spec", "status"])
async def test_a_controller_that_was_replaced_while_suspended_writes_nothing(scene: Scene, what: str) -> None:
    """After a takeover, earlier decisions are not written, nor are statuses, which no transaction fences."""
    await scene.make_table()
    watch = scene.metastore.watch

    async def asleep(prefix: str, *, after: Snapshot) -> AsyncIterator[WatchBatch]:
        await asyncio.Event().wait()
        async for batch in watch(prefix, after=after):
            yield batch

    await scene.stop()
    replaced: Any = scene.metastore
    replaced.watch = asleep
    scene.controller = scene.make_controller("sleepy")
    scene.start()
    await scene.pass_time(1)
    await scene.put(KEYS.epoch, b'{"holder":"successor"}')
    if what == "spec":
        await scene.change(replicas=4)
    else:
        await scene.delete(KEYS.leader(await scene.key(), 0))
    with written(scene) as found:
        scene.controller.enqueue("orders")
        await scene.pass_time(3)
    assert found == Counter()
    assert scene.task is not None
    with pytest.raises(FencedError, match="no longer h"):
        await scene.task
    scene.task = None


async def a_writer(scene: Scene) -> tuple[StatusWriter, list[str]]:
    """Stop the controller; return a status writer and the names of the resources that it writes."""
    await scene.stop()
    resources = ClusterResources(scene.resources, "main")
    sent: list[str] = []

    async def set_status(resource: Any, status: Any) -> None:
        sent.append(resource.metadata.name)

    resources.set_status = set_status  # type: ignore[method-assign]
    context = ControllerContext(scene.metastore, keys=KEYS, clock=scene.clock, wall_clock=scene.wall_clock)
    context.epoch = await acquire_epoch(scene.metastore, KEYS.epoch, "tests")
    await context.check_version()
    return StatusWriter(resources, context), sent


@pytest.mark.parametrize("holds", [False, None])
async def test_a_status_that_stops_being_ready_is_written_at_once(scene: Scene, holds: bool | None) -> None:
    """A resource that stops being Ready is written without the delay of other changes."""
    await scene.make_table()
    writer, sent = await a_writer(scene)
    found = await scene.table()
    assert found.status is not None
    ready = condition("Ready", holds, Reason.NO_QUORUM, now="2026-01-01T00:00:00Z", generation=1)
    status = found.status.model_copy(update={"conditions": merge_conditions(found.status.conditions, [ready])})
    assert await writer.write(found, status) == 0
    assert sent == ["orders"]
    scene.clock.advance(STATUS_SECONDS)
    again = found.model_copy(update={"status": status})
    assert await writer.write(again, found.status) == SETTLE_SECONDS
    assert sent == ["orders"]


async def test_an_unchanged_status_is_not_sent(scene: Scene) -> None:
    """An unchanged status is not sent, although the API server would ignore it."""
    await scene.make_table()
    writer, sent = await a_writer(scene)
    found = await scene.table()
    assert found.status is not None
    assert await writer.write(found, found.status) == 0
    assert sent == []
    other = found.status.model_copy(update={"moving": 7})
    assert await writer.write(found, other) == SETTLE_SECONDS
    assert await writer.write(found, found.status) == 0
    scene.clock.advance(SETTLE_SECONDS)
    assert await writer.write(found, other) == SETTLE_SECONDS
    assert sent == []
    scene.clock.advance(SETTLE_SECONDS)
    assert await writer.write(found, other) == 0
    assert await writer.write(found, other) == STATUS_SECONDS
    assert sent == ["orders"]


@pytest.mark.parametrize("why", [UnreachableError, AuthenticationError])
async def test_an_unreachable_metastore_is_reported(scene: Scene, why: type[MetastoreError]) -> None:
    """If resources are reachable, all of them report the problem, and its end."""
    await scene.make_table()
    with away(scene, KEYS.root, why=why):
        await scene.change(replicas=4)
        await scene.pass_time(5)
        assert scene.controller.problem == "no etcd endpoint answers"
        assert (await scene.conditions())["Degraded"] == ("True", "MetastoreUnreachable")
        assert conditions_of((await scene.cluster()).status)["Degraded"] == ("True", "MetastoreUnreachable")
        status = (await scene.table()).status
        assert status is not None
        assert (status.observed_generation, status.replicas) == (1, 3)
    await scene.pass_time(5)
    assert scene.controller.problem == ""
    assert (await scene.conditions())["Degraded"] == ("False", "AsExpected")
    assert await scene.arrive() == 8


async def test_without_resources_nothing_is_changed(scene: Scene) -> None:
    """A controller without resources waits, and continues when they are back."""
    await scene.make_table()
    with away(scene, "/evenkeel.resources/"):
        await scene.go("main-3")
        await scene.pass_time(700, step=1)
    kv = await scene.metastore.get(KEYS.store_state("main-3"))
    assert kv is not None
    assert decode(StoreState, kv.value, key=kv.key).lost_since is None
    await scene.pass_time(5)
    assert (await scene.conditions())["Degraded"][0] == "True"
    assert "stores that hold replicas are unavailable: main-3" in await scene.message("Degraded")


@pytest.mark.parametrize("why", [UnreachableError, AuthenticationError])
async def test_a_controller_starts_while_etcd_is_unreachable(scene: Scene, why: type[MetastoreError]) -> None:
    """A controller acquires the epoch when etcd becomes reachable."""
    await scene.make_table(table(more=", undeleteFor: 0s"))
    await scene.stop()
    scene.controller = scene.make_controller("late")
    with away(scene, "/", why=why):
        scene.start()
        await scene.pass_time(10)
    await scene.pass_time(5)
    await scene.resources.delete(Table, "orders")
    await scene.pass_time(1)
    assert await scene.kvs(KEYS.tombstone(""))


async def test_a_full_metastore_is_reported_in_every_status(scene: Scene) -> None:
    """A full etcd is detected without a write, and reported until there is space."""
    await scene.make_table()
    scene.metastore.why_full = "etcd has used up its space quota"
    await scene.pass_time(40, step=1)
    for status in ((await scene.cluster()).status, (await scene.table()).status):
        assert conditions_of(status)["Degraded"] == ("True", "MetastoreFull")
    written = dict(scene.metastore.writes)
    await scene.pass_time(60, step=1)
    assert dict(scene.metastore.writes) == written, "reported once, not repeatedly"
    scene.metastore.why_full = ""
    await scene.pass_time(40, step=1)
    for status in ((await scene.cluster()).status, (await scene.table()).status):
        assert conditions_of(status)["Degraded"][0] == "False"

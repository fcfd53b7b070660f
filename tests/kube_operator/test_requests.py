"""API requests for one change of one table, with the real controller."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from evenkeel.controller.controller import Controller
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import STORE_CLUSTER, TABLE, Kind, Object
from evenkeel.model.resource_loading import Resource, load_yaml, parse
from evenkeel.model.table import Table
from evenkeel_operator.kinds import OWNER_FIELDS
from evenkeel_operator.kube import resource_reader
from evenkeel_operator.kube.kube_status_writer import KubeStatusWriter
from evenkeel_operator.kube.object_cache import Cache
from evenkeel_operator.kube.resource_reader import FINALIZER, Reader
from evenkeel_operator.reconcilers.kube_resources import KubeResources
from tests.controller.support import KEYS, Scene
from tests.kube_operator.support import FakeKube

NAMESPACE = "default"


class KubeScene(Scene):
    """The scene of the controller, with an API server in memory."""

    def make_controller(self, holder: str) -> Controller:
        self.kube = FakeKube()
        self.cache = Cache(OWNER_FIELDS, self._changed)
        self.statuses = KubeStatusWriter(cast(Kube, self.kube), self.cache, clock=self.clock)
        self.reader = Reader(self.statuses)
        self.own = KubeResources(
            cast(Kube, self.kube),
            self.cache,
            self.statuses,
            self.reader,
            cluster=(NAMESPACE, "main"),
            with_node_zones=lambda cluster: cluster,
            describe=lambda _, status: status,
        )
        return Controller(
            self.metastore, keys=KEYS, resources=self.own, holder=holder, clock=self.clock, wall_clock=self.wall_clock
        )

    def _changed(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        found = after or before or {}
        if before is None or after is None or before["spec"] != after["spec"]:
            self.own.notify(None if kind == STORE_CLUSTER else found["spec"].get("table", found["metadata"]["name"]))

    async def apply(self, *texts: str) -> None:
        for resource in (resource for text in texts for resource in load_yaml(text)):
            kind = TABLE if isinstance(resource, Table) else STORE_CLUSTER
            spec = resource.document()["spec"]
            self.kube.add(kind, resource.metadata.name, NAMESPACE, spec=spec)
            live = self.kube.objects[kind, NAMESPACE, resource.metadata.name]
            live["metadata"] |= {"generation": 1, "finalizers": [FINALIZER]}
            self.cache.put(kind, live)

    async def change(self, name: str = "orders", **spec: Any) -> None:
        live = self.kube.objects[TABLE, NAMESPACE, name]
        version = str(int(live["metadata"]["resourceVersion"]) + 1000)
        metadata = {**live["metadata"], "generation": live["metadata"]["generation"] + 1, "resourceVersion": version}
        changed = {**live, "metadata": metadata, "spec": {**live["spec"], **spec}}
        self.kube.objects[TABLE, NAMESPACE, name] = changed
        self.kube.skip_to(int(version))
        self.cache.put(TABLE, changed)

    async def table(self, name: str = "orders") -> Table:
        found = self.cache.get(TABLE, NAMESPACE, name)
        assert found is not None
        return self.reader.read(Table, found)

    async def rest(self) -> None:
        for _ in range(5):
            await super().rest()


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[KubeScene]:
    async with KubeScene() as made:
        task = asyncio.create_task(made.statuses.run())
        yield made
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def changed(scene: KubeScene) -> Counter[str]:
    """Add a replica to `orders`, which the stores create at once; return the requests."""
    scene.kube.calls.clear()
    await scene.change(replicas=4)
    await scene.pass_time(0.4)
    while await scene.arrive() or await scene.obey():
        await scene.pass_time(0.2)
    await scene.pass_time(10)
    status = (await scene.table()).status
    assert status is not None
    assert (status.replicas, status.observed_generation) == (4, 2)
    return Counter(scene.kube.calls)


async def test_a_change_is_four_requests(scene: KubeScene) -> None:
    """Two writes of the table's statuses, a plan and its end: no reads, and nothing for other tables."""
    await scene.make_table()
    await scene.make_table(name="other")
    assert await changed(scene) == {
        "status Table orders": 1,
        "status PartitionAssignment orders-0": 1,
        "create RebalancePlan": 1,
        "status RebalancePlan orders-2": 1,
    }


async def test_growth_is_not_published_all_the_time(scene: KubeScene) -> None:
    """A size is published with other changes, or when it differs noticeably."""
    await scene.make_table()
    scene.kube.calls.clear()
    for size, published in ((1000, 1), (1200, 0), (1249, 0), (1300, 1)):
        await scene.report_sizes("main-0", await scene.key(), dict.fromkeys(range(8), size))
        await scene.pass_time(40, step=1)
        assert Counter(scene.kube.calls)["status Table orders"] == published
        scene.kube.calls.clear()


async def test_statuses_are_not_read_back(scene: KubeScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the changed spec and the plan are parsed, not the statuses that were written."""
    await scene.make_table()
    read: list[str] = []

    def counted(data: Object, source: str = "object") -> Resource:
        read.append(source)
        return parse(data, source)

    monkeypatch.setattr(resource_reader, "parse", counted)
    await changed(scene)
    assert sorted(read) == ["RebalancePlan default/orders-2", "Table default/orders"]

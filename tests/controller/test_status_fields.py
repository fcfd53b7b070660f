"""Every field of every status is filled by the code that runs in production."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from evenkeel.controller import status_writer
from evenkeel.model.resource_base import StatusModel
from evenkeel.model.resource_loading import KINDS
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.reconcile.metastore_adoption import MetastoreSeen, refused_status
from evenkeel.versions import SUPPORTED
from evenkeel_operator.reconcilers.pod_conditions import PodFacts, with_pod_facts
from tests.controller.support import Scene, table

QUEUED = ", movement: {maxConcurrent: 2, retarget: Queue}"
DRY_RUN = (
    "apiVersion: evenkeel.dev/v1alpha1\nkind: RebalancePlan\nmetadata: {name: what-if}\n"
    "spec: {table: orders, dryRun: true, whatIf: {replicas: 4}}\n"
)
CHOICE = (
    "apiVersion: evenkeel.dev/v1alpha1\nkind: PartitionAssignment\nmetadata: {name: orders-0}\n"
    "spec: {table: orders, from: 0, partitions: [{partition: 0, stores: [main-0, main-1, main-3]}]}\n"
)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[StatusModel]:
    """Return all statuses that a controller writes."""
    found: list[StatusModel] = []
    write = status_writer.StatusWriter.write

    async def noted(self: Any, resource: Any, status: Any, **how: Any) -> float:
        found.append(status)
        return await write(self, resource, status, **how)

    monkeypatch.setattr(status_writer.StatusWriter, "write", noted)
    return found


def fields(model: type[BaseModel]) -> Iterator[str]:
    """Yield every field of a model and its nested models, as `Model.field`."""
    for name, field in model.model_fields.items():
        yield f"{model.__name__}.{name}"
        for inner in _models(field.annotation):
            yield from fields(inner)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)


def filled(value: Any) -> Iterator[str]:
    """Yield the fields of a status that differ from their defaults."""
    if isinstance(value, tuple):
        for item in value:
            yield from filled(item)
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            held = getattr(value, name)
            if field.is_required() or held != field.get_default():
                yield f"{type(value).__name__}.{name}"
            yield from filled(held)


async def live(scene: Scene) -> None:
    """Run a cluster through the events that fill all fields."""
    await scene.make_table(table(more=QUEUED))
    key = await scene.key()
    for number in range(5):
        await scene.report(f"main-{number}", replicas=5, copied_per_second=1000)
        await scene.report_sizes(f"main-{number}", key, dict.fromkeys(range(8), 1000))
    await scene.apply(DRY_RUN)
    await scene.change(replicas=4)
    await scene.pass_time(5)
    view = await scene.view(0)
    assert view.pending is not None
    coming = {peer.store: 0.5 for peer in view.pending.last}
    await scene.report(
        "main-0", replicas=5, filling={f"{key}/0": coming}, problems={f"{key}/0": "snapshot transfer stalled"}
    )
    await scene.pass_time(10)
    await scene.change(replicas=3)
    await scene.pass_time(10)
    while await scene.arrive():
        await scene.pass_time(5)
    await scene.annotate(StoreCluster, "main", drain="main-2")
    await scene.pass_time(5)
    await scene.arrive(only=1)
    await scene.pass_time(10)
    await scene.apply(CHOICE)
    await scene.change(replicas=5)  # which the four stores that are left cannot have
    await scene.pass_time(10)
    await scene.go("main-3")
    await scene.pass_time(30)
    for number in range(5):
        await scene.come(f"main-{number}", versions=SUPPORTED)
    await scene.pass_time(30)
    await scene.resources.delete(Table, "orders")
    await scene.pass_time(5)
    await scene.resources.change(StoreCluster, "main", lambda document: document["spec"].update(adoptMetastore="1"))
    await scene.pass_time(10)


async def test_every_field_is_filled(written: list[StatusModel]) -> None:
    """The controller or the operator fills every field."""
    async with Scene(5) as scene:
        await live(scene)
        cluster = await scene.cluster()
    assert cluster.status is not None
    facts = PodFacts(selector="app=main", pods=5, ready=4, zones_from="Nodes")
    reported = with_pod_facts(cluster, cluster.status, facts, before=cluster.status, now="2026-01-01T00:00:00Z")
    assert cluster.status.metastore is not None
    refused = refused_status(cluster, MetastoreSeen(cluster.status.metastore.cluster_id, revision=0))
    wanted = {
        name
        for kind in KINDS.values()
        for model in _models(kind.model_fields["status"].annotation)
        for name in fields(model)
    }
    assert wanted - {name for status in (*written, reported, refused) for name in filled(status)} == set()


def test_a_field_that_nothing_fills_is_found() -> None:
    """The search includes nested parts of a status."""

    class Inner(StatusModel):
        used: int = 0
        forgotten: int = 0

    class Outer(StatusModel):
        inner: tuple[Inner, ...] = ()
        alone: Inner | None = None

    assert set(fields(Outer)) == {"Outer.inner", "Outer.alone", "Inner.used", "Inner.forgotten"}
    assert set(filled(Outer(inner=(Inner(used=1),)))) == {"Outer.inner", "Inner.used"}

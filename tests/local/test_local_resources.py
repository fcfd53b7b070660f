"""Resources in etcd have the semantics of an API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.local.local_resources import ROOT, Applied, ClusterResources, LocalResources
from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Put, Txn
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.resource_loading import load_yaml
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table, TableStatus
from tests.controller.support import store_cluster, table

DRY_RUN = (
    "apiVersion: evenkeel.dev/v1alpha1\nkind: RebalancePlan\nmetadata: {name: mine}\n"
    "spec: {table: orders, dryRun: true}\n"
)


@pytest.fixture
async def resources() -> AsyncIterator[LocalResources]:
    async with MemoryMetastore() as metastore:
        found = LocalResources(metastore)
        for text in (store_cluster(3), table()):
            await found.apply(load_yaml(text)[0])
        yield found


async def apply(resources: LocalResources, text: str) -> Applied:
    return await resources.apply(load_yaml(text)[0])


async def test_apply(resources: LocalResources) -> None:
    """A resource is created, then unchanged, then configured with a new generation; its uid stays."""
    first = await resources.need(Table, "orders")
    assert (first.metadata.generation, bool(first.metadata.uid)) == (1, True)
    assert await apply(resources, table()) is Applied.UNCHANGED
    assert await apply(resources, table(replicas=2)) is Applied.CONFIGURED
    second = await resources.need(Table, "orders")
    assert (second.metadata.generation, second.metadata.uid) == (2, first.metadata.uid)
    assert second.spec.replicas == 2


async def test_labels_and_annotations_are_merged_without_a_new_generation(resources: LocalResources) -> None:
    """Labels and annotations of others stay when a file is applied again."""
    await apply(resources, table(labels=", labels: {team: a}, annotations: {a: b}"))
    await resources.change(Table, "orders", lambda document: document["metadata"]["annotations"].update(drain="1"))
    assert await apply(resources, table(labels=", labels: {tier: b}")) is Applied.CONFIGURED
    found = (await resources.need(Table, "orders")).metadata
    assert found.labels == {"team": "a", "tier": "b"}
    assert (found.annotations, found.generation) == ({"a": "b", "drain": "1"}, 1)


REFUSED = {
    "another namespace": (
        table(labels=", namespace: shop"),
        r"Table orders: metadata.namespace: got 'shop'; allowed: default",
    ),
    "an unknown StoreCluster": (
        table("new").replace("main", "nowhere"),
        r"spec.storeCluster: got 'nowhere'; allowed: a StoreCluster that exists \(main\)",
    ),
    "other partitions": (table(partitions=9), r"spec.partitions: got 9; allowed: 8, because it cannot change"),
    "fewer columns": (table().replace(", {name: x, type: string}", ""), "column x must stay at position 1"),
    "less storage": (store_cluster(3).replace("1Gi", "1Mi"), "1Gi or more, because volumes cannot shrink"),
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: str(case).replace(" ", "-"))
async def test_what_is_not_allowed_is_refused(resources: LocalResources, case: str) -> None:
    """The error has field, value and remedy, and nothing is changed."""
    text, words = REFUSED[case]
    before = [await resources.all_of(Table), await resources.all_of(StoreCluster)]
    with pytest.raises(InvalidInputError, match=words):
        await apply(resources, text)
    assert [await resources.all_of(Table), await resources.all_of(StoreCluster)] == before


async def test_a_change_is_checked_like_a_file(resources: LocalResources) -> None:
    """An invalid edit is refused, and the error names the field."""
    with pytest.raises(
        InvalidInputError, match=r"Table orders: spec.replicas: got 0; allowed: an integer from 1 to 99"
    ):
        await resources.change(Table, "orders", lambda document: document["spec"].update(replicas=0))
    with pytest.raises(InvalidInputError, match=r"Table: got 'nope'; allowed: one that exists \(orders\)"):
        await resources.change(Table, "nope", lambda document: None)


async def test_concurrent_changes_all_succeed(resources: LocalResources) -> None:
    """No change overwrites another."""

    def note(name: str) -> Any:
        return lambda document: document["metadata"].setdefault("annotations", {}).update({name: "1"})

    await asyncio.gather(*(resources.change(Table, "orders", note(name)) for name in "abcdef"))
    assert set((await resources.need(Table, "orders")).metadata.annotations) == set("abcdef")


async def test_a_status_belongs_to_its_object(resources: LocalResources) -> None:
    """It is no new generation, survives an apply, and never reaches a new object of the same name."""
    first = await resources.need(Table, "orders")
    await resources.set_status(first, TableStatus(plan=7))
    await apply(resources, table(replicas=2))
    found = await resources.need(Table, "orders")
    assert found.status == TableStatus(plan=7)
    assert found.metadata.generation == 2
    await resources.remove(first)
    await resources.set_status(first, TableStatus(plan=8))
    await apply(resources, table())
    await resources.set_status(first, TableStatus(plan=9))
    assert (await resources.need(Table, "orders")).status is None


async def test_deleting(resources: LocalResources) -> None:
    """Tables and StoreClusters stay marked until they are finalized; other kinds are removed at once."""
    await apply(resources, DRY_RUN)
    await resources.delete(RebalancePlan, "mine")
    assert await resources.get(RebalancePlan, "mine") is None
    with pytest.raises(InvalidInputError, match=r"StoreCluster main has tables \(orders\): delete them first"):
        await resources.delete(StoreCluster, "main")
    await resources.delete(Table, "orders")
    marked = await resources.need(Table, "orders")
    assert marked.metadata.deletion_timestamp
    with pytest.raises(InvalidInputError, match="Table orders is being deleted; wait"):
        await apply(resources, table())
    await ClusterResources(resources, "main").finalize(marked)
    await resources.delete(StoreCluster, "main")
    with pytest.raises(InvalidInputError, match=r"spec.storeCluster: got 'main'"):
        await apply(resources, table())


async def test_finalizing_a_table_removes_its_resources(resources: LocalResources) -> None:
    """A table whose name has the same prefix keeps its resources."""
    own = ClusterResources(resources, "main")
    piece = (
        "apiVersion: evenkeel.dev/v1alpha1\nkind: PartitionAssignment\nmetadata: {{name: {0}-0}}\n"
        "spec: {{table: {0}, from: 0}}\n"
    )
    for text in (DRY_RUN, piece.format("orders"), table("orders-0"), piece.format("orders-0")):
        await apply(resources, text)
    assert [found.metadata.name for found in await own.assignments("orders")] == ["orders-0"]
    await own.finalize(await resources.need(Table, "orders"))
    assert await resources.all_of(RebalancePlan) == []
    assert [found.metadata.name for found in await resources.all_of(PartitionAssignment)] == ["orders-0-0"]
    assert [found.metadata.name for found in await own.tables()] == ["orders-0"]


async def test_tables_of_other_clusters_are_not_listed(resources: LocalResources) -> None:
    """A controller sees the tables of its own StoreCluster."""
    other = ClusterResources(resources, "other")
    assert (await other.tables(), await other.table("orders"), await other.store_cluster()) == ([], None, None)


async def test_unreadable_resources_are_skipped(resources: LocalResources, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged object does not hide the others; reading it by name raises an error."""
    metastore: Any = resources._metastore
    for name, value in (("broken", b"{"), ("empty", b"{}")):
        await metastore.txn(Txn(success=(Put(f"{ROOT}Table/default/{name}", value),)))
    assert [found.metadata.name for found in await resources.all_of(Table)] == ["orders"]
    assert "Table/default/broken" in caplog.text
    with pytest.raises(InvalidInputError, match="is not valid JSON"):
        await resources.get(Table, "broken")


async def test_changes_name_what_to_reconcile(resources: LocalResources) -> None:
    """Everything first, then tables by name; a status is no change."""
    seen: list[str | None] = []

    async def listen() -> None:
        async for name in resources.changes():
            seen.append(name)  # noqa: PERF401 - it never ends

    listening = asyncio.ensure_future(listen())

    async def news() -> list[str | None]:
        for _ in range(10):
            await asyncio.sleep(0)
        found, seen[:] = list(seen), []
        return found

    assert await news() == [None]
    await resources.set_status(await resources.need(Table, "orders"), TableStatus(plan=1))
    assert await news() == []
    await apply(resources, table(replicas=2))
    assert await news() == ["orders"]
    await apply(resources, DRY_RUN)
    assert await news() == ["orders"]
    await resources.delete(RebalancePlan, "mine")
    assert await news() == ["orders"]
    await apply(resources, store_cluster(4))
    assert await news() == [None]
    await resources.delete(Table, "orders")
    assert await news() == ["orders"]
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)

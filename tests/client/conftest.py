"""Fixtures: stores and clients that are closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from evenkeel.client.aio import AsyncClient, AsyncTableClient
from evenkeel.protocol.records import Leader, StoreRecord, encode
from tests.store.serving import KEYS, ORDERS, Store, table_record

PARTITIONS = 4


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[list[Store]]:
    """Two stores that know each other; each leads two partitions of the table `orders`."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(Store(tmp_path / f"{n}", name=f"main-{n}")) for n in range(2)]
        for number, store in enumerate(made):
            own = [partition for partition in range(PARTITIONS) if partition % 2 == number]
            await store.table(table_record(ORDERS, partitions=PARTITIONS, changes={}), partitions=own)
        for store in made:
            for number, other in enumerate(made):
                store.routes.put(KEYS.store(other.name), encode(StoreRecord(volume="v", flight=other.address)))
                for partition in range(number, PARTITIONS, 2):
                    store.routes.put(KEYS.leader("orders.1", partition), encode(Leader(other.name, 1)))
        yield made


@pytest.fixture
async def client(stores: list[Store]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient([stores[0].address], deadline=20.0) as made:
        yield made


@pytest.fixture
def orders(client: AsyncClient) -> AsyncTableClient:
    return client.table("orders")

"""Deleted tables whose data is retained."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from evenkeel.errors import TableDroppedError, UnknownTableError
from evenkeel.protocol.records import Dropped, TableRecord, decode, encode
from tests.store.serving import KEYS, ORDERS, Client, Store, table_record


async def test_deleted_table_is_not_served(tmp_path: Path) -> None:
    """A deleted table cannot be read by name or key; after undelete its rows are back."""
    ready = table_record(ORDERS)
    kept = msgspec.structs.replace(decode(TableRecord, ready, key=""), dropped=Dropped(since=1.0))
    async with Store(tmp_path) as store:
        await store.table(ready)
        client = Client(store.address)
        await client.put([{"id": 1, "customer": "x"}])
        store.routes.put(KEYS.table("orders.1"), encode(kept))
        with pytest.raises((UnknownTableError, TableDroppedError)):
            await client.rows()
        with pytest.raises(TableDroppedError, match="undelete it"):
            store.service.find("orders.1", 0)
        store.routes.put(KEYS.table("orders.1"), ready)
        assert [row["id"] for row in await client.rows()] == [1]
        await client.close()

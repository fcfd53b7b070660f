"""`RoutingTable` as the metastore's keys change."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from evenkeel.errors import MalformedRecordError, UnreachableError
from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Delete, Put, Snapshot, Txn
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import (
    Dropped,
    Leader,
    Peer,
    Stable,
    StoreRecord,
    TableRecord,
    TableState,
    decode,
    encode,
)
from evenkeel.routing.route_follower import follow
from evenkeel.routing.routing_table import RoutingTable
from evenkeel.runtime.clock import VirtualClock
from tests.wire.support import wait_until

KEYS = Keys(namespace="default", store_cluster="main")
SPEC: dict[str, Any] = {
    "storeCluster": "main",
    "partitions": 4,
    "schema": {
        "columns": [{"name": "id", "type": "int64", "nullable": False}, {"name": "name", "type": "string"}],
        "primaryKey": ["id"],
    },
}


def test_a_deleted_table_whose_data_is_kept(routes: RoutingTable) -> None:
    """A dropped table is neither found nor listed, also after a new table of its name; restored, it is as before."""
    kept = encode(msgspec.structs.replace(decode(TableRecord, record(), key=""), dropped=Dropped(since=1.0)))
    routes.put(KEYS.table("orders.1"), record())
    routes.put(KEYS.table("orders.1"), kept)
    assert routes.dropped("orders.1")
    assert [routes.table("orders"), routes.table("orders.1"), *routes.tables()] == [None, None]
    routes.put(KEYS.table("orders.2"), record())
    assert getattr(routes.table("orders"), "key", "") == "orders.2"
    routes.remove(KEYS.table("orders.2"))
    routes.put(KEYS.table("orders.1"), record())
    assert getattr(routes.table("orders"), "key", "") == "orders.1"
    assert not routes.dropped("orders.1")
    routes.put(KEYS.table("orders.1"), kept)
    routes.remove(KEYS.table("orders.1"))
    assert not routes.dropped("orders.1")


def record(**spec: Any) -> bytes:
    raw = msgspec.Raw(msgspec.json.encode(SPEC | spec))
    return encode(TableRecord(partitions=4, replicas=1, consensus_size=1, state=TableState.READY, spec=raw))


@pytest.fixture
def routes() -> RoutingTable:
    return RoutingTable(KEYS)


def test_tables(routes: RoutingTable) -> None:
    """A table is found by name and by key; a key does not match another table of the same name."""
    assert routes.put(KEYS.table("orders.1"), record(changes={"retention": "2h"})) == "orders.1"
    known = routes.table("orders")
    assert known is not None
    assert (known.key, known.schema.names, known.changes, known.retention) == ("orders.1", ("id", "name"), True, 7200.0)
    assert routes.table("orders.1") is known
    assert routes.table("orders.2") is None
    assert routes.remove(KEYS.table("orders.1")) == "orders.1"
    assert (routes.table("orders"), list(routes.tables())) == (None, [])


def test_changes_can_be_switched_off(routes: RoutingTable) -> None:
    """Changes are retained if the spec has `changes` and does not disable it."""
    for changes, kept in ((None, False), ({}, True), ({"enabled": False}, False)):
        routes.put(KEYS.table("orders.1"), record(**({} if changes is None else {"changes": changes})))
        known = routes.table("orders")
        assert known is not None
        assert known.changes is kept


def test_leaders_replicas_and_addresses(routes: RoutingTable) -> None:
    """Leaders, replicas and addresses follow their keys; a store keeps its address when its key is removed."""
    assert routes.put(KEYS.leader("orders.1", 3), encode(Leader("a", 5))) == "orders.1"
    routes.put(KEYS.partition("orders.1", 3).stable, encode(Stable((Peer("a", "v", 1), Peer("b", "w", 1)))))
    assert routes.put(KEYS.store("a"), encode(StoreRecord(volume="v", flight="grpc://a:1"))) == ""
    routes.put(KEYS.store("b"), encode(StoreRecord(volume="w")))
    assert (routes.leader("orders.1", 3), routes.leader("orders.1", 2)) == ("a", "")
    assert routes.replicas("orders.1", 3) == ("a", "b")
    assert (routes.address("a"), routes.address("b"), routes.stores()) == ("grpc://a:1", "", {"a": "grpc://a:1"})
    routes.remove(KEYS.store("a"))
    routes.remove(KEYS.leader("orders.1", 3))
    routes.remove(KEYS.partition("orders.1", 3).stable)
    assert routes.address("a") == "grpc://a:1"
    assert (routes.leader("orders.1", 3), routes.replicas("orders.1", 3)) == ("", ())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (KEYS.table("t.1"), b"{}", "not a TableRecord"),
        (KEYS.table("t.1"), record(partitions="x"), "spec.partitions"),
        (f"{KEYS.root}leaders/t.1/x", encode(Leader("a", 1)), "names no partition"),
    ],
)
def test_malformed_records(routes: RoutingTable, key: str, value: bytes, message: str) -> None:
    """The error names the malformed key or field."""
    with pytest.raises(MalformedRecordError, match=message):
        routes.put(key, value)


async def test_following(routes: RoutingTable, caplog: pytest.LogCaptureFixture) -> None:
    """`follow` applies changes of keys, reports their tables, and logs malformed records."""
    metastore = MemoryMetastore()
    await metastore.txn(Txn(success=(Put(KEYS.table("orders.1"), record()), Put(KEYS.table("bad.1"), b"{}"))))
    changed: list[str] = []
    following = asyncio.create_task(follow(metastore, routes, changed=changed.append))
    await wait_until(lambda: routes.table("orders") is not None)
    await metastore.txn(Txn(success=(Put(KEYS.leader("orders.1", 0), encode(Leader("a", 1))),)))
    await wait_until(lambda: routes.leader("orders.1", 0) == "a")
    await metastore.txn(Txn(success=(Delete(KEYS.table("orders.1")), Delete(f"{KEYS.root}leaders/", prefix=True))))
    await wait_until(lambda: routes.table("orders") is None and routes.leader("orders.1", 0) == "")
    assert set(changed) == {"orders.1"}
    assert "bad.1" in caplog.text
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


class Flaky:
    """A metastore whose first listings of the tables fail."""

    def __init__(self, inner: MemoryMetastore, failures: int) -> None:
        self._inner = inner
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def range(self, prefix: str, *, revision: int = 0) -> Snapshot:
        if prefix == KEYS.table("") and self._failures:
            self._failures -= 1
            raise UnreachableError("no etcd")
        return await self._inner.range(prefix, revision=revision)


class RecordingClock(VirtualClock):
    """A clock that records how long tasks sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await super().sleep(seconds)


async def test_an_unavailable_metastore_is_retried_with_backoff(routes: RoutingTable) -> None:
    """Each wait between two attempts is twice the last, with jitter, up to 5 s; then the routes are there."""
    inner, clock = MemoryMetastore(), RecordingClock()
    await inner.txn(Txn(success=(Put(KEYS.table("orders.1"), record()),)))
    following = asyncio.create_task(follow(Flaky(inner, 10), routes, clock=clock))
    await wait_until(lambda: routes.table("orders") is not None, clock)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    longest = [min(0.02 * 2**attempt, 5.0) for attempt in range(10)]
    assert len(clock.sleeps) == len(longest)
    assert all(most / 2 <= slept <= most for slept, most in zip(clock.sleeps, longest, strict=True))

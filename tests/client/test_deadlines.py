"""A call ends by its deadline, and its error shows whether rows may have been written."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from evenkeel.client import Client
from evenkeel.client.aio import AsyncClient, AsyncTableClient
from evenkeel.client.retries import RetryingCall
from evenkeel.errors import AccessError, BusyError, InvalidInputError, OutcomeUnknownError, UnavailableError
from evenkeel.protocol.records import StoreRecord, encode
from evenkeel.wire import socket_messages as m
from tests.store.serving import KEYS, ORDERS, Store, table_record
from tests.wire.support import wait_until

DEADLINE = 0.6
AT_MOST = 3.0
"""Much longer than the deadline, for slow machines; much shorter than one deadline for each store."""


@pytest.fixture
def hanging() -> Iterator[list[str]]:
    """Addresses of servers that accept connections and never answer."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    yield [f"grpc://127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.table("orders").count(),
        lambda client: client.table("orders").scan(),
        lambda client: client.table("orders").get([1]),
        lambda client: client.table("orders").changes(),
        lambda client: client.table("orders").upsert([{"id": 1}]),
        lambda client: client.table("orders").schema,
        lambda client: client.tables(),
        lambda client: client.sql("select * from orders"),
    ],
    ids=["count", "scan", "get", "changes", "upsert", "schema", "tables", "sql"],
)
def test_stores_that_hang_share_the_deadline(hanging: list[str], call: object) -> None:
    """Several stores that hang do not extend the deadline of any call."""
    assert callable(call)
    began = time.monotonic()
    with Client(hanging, deadline=DEADLINE) as client, pytest.raises(UnavailableError, match="no answer in time"):
        call(client)
    assert DEADLINE <= time.monotonic() - began < AT_MOST


class Silent(flight.FlightServerBase):  # type: ignore[misc]
    """A server that accepts requests and never answers."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.over = threading.Event()

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        self.over.wait()
        raise flight.FlightServerError("over")

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        reader.read_all()
        self.over.wait()


async def test_a_leader_that_hangs(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A read times out as unavailable; the outcome of a write is unknown."""
    with Silent() as silent:
        for store in stores:
            address = f"grpc://127.0.0.1:{silent.port}"
            store.routes.put(KEYS.store("main-1"), encode(StoreRecord(volume="v", flight=address)))
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="no answer in time"):
            await orders.within(DEADLINE).count()
        with pytest.raises(OutcomeUnknownError, match="outcome unknown: no answer in time"):
            await orders.within(DEADLINE).upsert([{"id": number} for number in range(20)])
        assert time.monotonic() - began < 2 * AT_MOST
        silent.over.set()


async def test_an_unknown_outcome_stays_unknown(orders: AsyncTableClient, stores: list[Store]) -> None:
    """An earlier attempt may have written, although the last one did not; without one the error is `BusyError`."""

    async def be_busy_after_the_first() -> None:
        await wait_until(lambda: any(store.sidecar.lost == 0 for store in stores))
        for store in stores:
            store.sidecar.outcome = m.Busy()

    for store in stores:
        store.sidecar.lost = 1
    busy = asyncio.create_task(be_busy_after_the_first())
    # On a slow machine the last attempt may time out instead.
    with pytest.raises(OutcomeUnknownError, match=r"unknown: (apply backlog is full|.*no answer in time)"):
        await orders.within(5 * DEADLINE).upsert([{"id": 1}])
    await busy
    with pytest.raises(BusyError):
        await orders.within(DEADLINE).upsert([{"id": 1}])


async def test_a_queued_write_times_out(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A write that waits behind another one fails at its own deadline, and is never sent."""
    for store in stores:
        store.sidecar.outcome, store.sidecar.proposals = m.Busy(), 0
    first = asyncio.create_task(orders.within(30).upsert([{"id": 1, "customer": "first"}]))
    await wait_until(lambda: any(store.sidecar.proposals for store in stores))
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="behind an earlier write; nothing was written; retry"):
        await orders.within(DEADLINE).upsert([{"id": 1, "customer": "late"}])
    assert time.monotonic() - began < AT_MOST
    for store in stores:
        store.sidecar.outcome = None
    await first
    assert (await orders.changes()).rows.column("customer").to_pylist() == ["first"]


async def test_each_part_extends_the_deadline(orders: AsyncTableClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is a progress timeout: each partition read and each group of batches written extends it."""
    parts: list[float] = []
    extend_deadline = RetryingCall.extend_deadline

    def counted(call: RetryingCall) -> None:
        before = call.deadline
        extend_deadline(call)
        parts.append(call.deadline - before)

    monkeypatch.setattr(RetryingCall, "extend_deadline", counted)
    await orders.within(30).upsert([{"id": number, "customer": "x" * (1 << 19)} for number in range(300)])
    written = len(parts)
    assert written > 4, "one for each partition, and two where there are more than 32 MB"
    await orders.within(30).scan(["id"])
    assert len(parts) == written + 4
    assert min(parts) >= 0 < max(parts)


def test_invalid_deadlines() -> None:
    """The error names the field and the value."""
    for seconds in (0, -1, True, "5"):
        with pytest.raises(InvalidInputError, match="deadline: got"):
            Client(["grpc://127.0.0.1:1"], deadline=seconds)  # type: ignore[arg-type]
    with Client(["grpc://127.0.0.1:1"]) as client, pytest.raises(InvalidInputError, match="within: got 0"):
        client.table("orders").within(0)


async def test_a_wrong_token_is_not_retried(tmp_path: Path) -> None:
    """A wrong or missing access token fails at once, for reads and writes."""
    async with Store(tmp_path, tokens=lambda: [b"one"]) as store:
        await store.table(table_record(ORDERS))
        began = time.monotonic()
        for token, message in (("", "no access token was sent"), ("two", "access token is not valid")):
            async with AsyncClient([store.address], token=token) as client:
                for call in (
                    client.table("orders").count(),
                    client.table("orders").upsert([{"id": 1}]),
                    client.tables(),
                ):
                    with pytest.raises(AccessError, match=message):
                        await call
        assert time.monotonic() - began < 10.0
        async with AsyncClient([store.address], token="one") as client:
            assert await client.table("orders").count() == 0


async def test_a_closed_client(stores: list[Store]) -> None:
    """Calls of a closed client raise `UnavailableError`; a call in progress ends soon."""
    client = AsyncClient([stores[0].address])
    table = client.table("orders")
    assert await table.count() == 0
    stores[0].sidecar.readable = False
    before = stores[0].sidecar.read_requests
    waiting = asyncio.create_task(table.count())
    await wait_until(lambda: stores[0].sidecar.read_requests > before)
    await client.close()
    with pytest.raises(UnavailableError):
        await waiting
    for call in (table.count(), table.upsert([{"id": 1}]), client.tables()):
        with pytest.raises(UnavailableError, match="the client is closed"):
            await call


async def test_a_call_that_waits_for_a_thread_when_the_client_is_closed(stores: list[Store]) -> None:
    """A call that waits for a thread raises `UnavailableError`, not `CancelledError`."""
    client = AsyncClient([stores[0].address])
    busy = threading.Event()
    client._threads = ThreadPoolExecutor(1)
    client._threads.submit(busy.wait)
    try:
        waiting = asyncio.create_task(client.table("orders").count())
        await wait_until(lambda: client._threads._work_queue.qsize() > 0)
        await client.close()
        with pytest.raises(UnavailableError, match="the client is closed"):
            await waiting
    finally:
        busy.set()


async def test_a_timeout_of_asyncio(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A timeout of asyncio ends the wait at once, and the client remains usable."""
    stores[0].sidecar.readable = False
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await orders.count()
    stores[0].sidecar.readable = True
    assert await orders.count() == 0

"""A call ends by its deadline, and says what it knows of what it was to do."""

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
from evenkeel.client.retries import Trying
from evenkeel.errors import AccessError, BusyError, InvalidInputError, OutcomeUnknownError, UnavailableError
from evenkeel.protocol.records import StoreRecord, encode
from evenkeel.wire import socket_messages as m
from tests.store.serving import KEYS, ORDERS, Store, table_record
from tests.wire.support import turns

DEADLINE = 0.6
AT_MOST = 3.0
"""Far more than the deadline, for a slow machine; far less than what one hanging store was given before."""


@pytest.fixture
def hanging() -> Iterator[list[str]]:
    """Addresses at which somebody listens who never says anything."""
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
    """However many there are, and whatever is asked."""
    assert callable(call)
    began = time.monotonic()
    with Client(hanging, deadline=DEADLINE) as client, pytest.raises(UnavailableError, match="no answer in time"):
        call(client)
    assert DEADLINE <= time.monotonic() - began < AT_MOST


class Silent(flight.FlightServerBase):  # type: ignore[misc]
    """Takes whatever comes, and never says anything."""

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
    """A read was not answered; a write may have been carried out."""
    with Silent() as silent:
        for store in stores:
            address = f"grpc://127.0.0.1:{silent.port}"
            store.routes.put(KEYS.store("main-1"), encode(StoreRecord(volume="v", flight=address)))
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="no answer in time"):
            await orders.within(DEADLINE).count()
        with pytest.raises(OutcomeUnknownError, match="whether it was written is not known: no answer in time"):
            await orders.within(DEADLINE).upsert([{"id": number} for number in range(20)])
        assert time.monotonic() - began < 2 * AT_MOST
        silent.over.set()


async def test_what_an_earlier_attempt_may_have_written_stays_unknown(
    orders: AsyncTableClient, stores: list[Store]
) -> None:
    """Though the last attempt surely wrote nothing; one that never got so far says so."""

    async def be_busy_after_the_first() -> None:
        await turns(lambda: any(store.sidecar.lost == 0 for store in stores))
        for store in stores:
            store.sidecar.outcome = m.Busy()

    for store in stores:
        store.sidecar.lost = 1
    busy = asyncio.create_task(be_busy_after_the_first())
    # On a slow machine the last attempt may get no answer instead, and that is what is told of it.
    with pytest.raises(OutcomeUnknownError, match=r"not known: (more waits to be applied|.*no answer in time)"):
        await orders.within(5 * DEADLINE).upsert([{"id": 1}])
    await busy
    with pytest.raises(BusyError):
        await orders.within(DEADLINE).upsert([{"id": 1}])


async def test_what_waits_behind_another_write_is_given_up_in_time(
    orders: AsyncTableClient, stores: list[Store]
) -> None:
    """When its own time is over, and then it is never sent."""
    for store in stores:
        store.sidecar.outcome, store.sidecar.proposals = m.Busy(), 0
    first = asyncio.create_task(orders.within(30).upsert([{"id": 1, "customer": "first"}]))
    await turns(lambda: any(store.sidecar.proposals for store in stores))
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="what was to be written before it took"):
        await orders.within(DEADLINE).upsert([{"id": 1, "customer": "late"}])
    assert time.monotonic() - began < AT_MOST
    for store in stores:
        store.sidecar.outcome = None
    await first
    assert (await orders.changes()).rows.column("customer").to_pylist() == ["first"]


async def test_time_begins_anew_with_each_part(orders: AsyncTableClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that was read, a turn that was written: a call may take long as long as something comes of it."""
    parts: list[float] = []
    went_on = Trying.went_on

    def counted(trying: Trying) -> None:
        before = trying.until
        went_on(trying)
        parts.append(trying.until - before)

    monkeypatch.setattr(Trying, "went_on", counted)
    await orders.within(30).upsert([{"id": number, "customer": "x" * (1 << 19)} for number in range(300)])
    written = len(parts)
    assert written > 4, "one for each partition, and two where there are more than 32 MB"
    await orders.within(30).scan(["id"])
    assert len(parts) == written + 4
    assert min(parts) >= 0 < max(parts)


def test_deadlines_that_are_none() -> None:
    """The field and the value are named."""
    for seconds in (0, -1, True, "5"):
        with pytest.raises(InvalidInputError, match="deadline: got"):
            Client(["grpc://127.0.0.1:1"], deadline=seconds)  # type: ignore[arg-type]
    with Client(["grpc://127.0.0.1:1"]) as client, pytest.raises(InvalidInputError, match="within: got 0"):
        client.table("orders").within(0)


async def test_a_wrong_token_is_no_store_that_does_not_answer(tmp_path: Path) -> None:
    """It is refused at once, by name, for reads and writes alike."""
    async with Store(tmp_path, tokens=lambda: [b"one"]) as store:
        await store.table(table_record(ORDERS))
        began = time.monotonic()
        for token, said in (("", "no token was given"), ("two", "not one that this store expects")):
            async with AsyncClient([store.address], token=token) as client:
                for call in (
                    client.table("orders").count(),
                    client.table("orders").upsert([{"id": 1}]),
                    client.tables(),
                ):
                    with pytest.raises(AccessError, match=said):
                        await call
        assert time.monotonic() - began < 10.0
        async with AsyncClient([store.address], token="one") as client:
            assert await client.table("orders").count() == 0


async def test_a_closed_client_says_so(stores: list[Store]) -> None:
    """In place of an error about threads; a call under way ends soon."""
    client = AsyncClient([stores[0].address])
    table = client.table("orders")
    assert await table.count() == 0
    stores[0].sidecar.readable = False
    before = stores[0].sidecar.questions
    waiting = asyncio.create_task(table.count())
    await turns(lambda: stores[0].sidecar.questions > before)
    await client.close()
    with pytest.raises(UnavailableError):
        await waiting
    for call in (table.count(), table.upsert([{"id": 1}]), client.tables()):
        with pytest.raises(UnavailableError, match="the client is closed"):
            await call


async def test_a_call_that_waits_for_a_thread_when_the_client_is_closed(stores: list[Store]) -> None:
    """It ends with the same error, and not as if whoever made it had been cancelled."""
    client = AsyncClient([stores[0].address])
    busy = threading.Event()
    client._threads = ThreadPoolExecutor(1)
    client._threads.submit(busy.wait)
    try:
        waiting = asyncio.create_task(client.table("orders").count())
        await turns(lambda: client._threads._work_queue.qsize() > 0)
        await client.close()
        with pytest.raises(UnavailableError, match="the client is closed"):
            await waiting
    finally:
        busy.set()


async def test_who_stops_waiting_is_not_kept(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A timeout of asyncio's ends the wait at once, and the client goes on."""
    stores[0].sidecar.readable = False
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await orders.count()
    stores[0].sidecar.readable = True
    assert await orders.count() == 0

"""Small writes that share entries."""

from __future__ import annotations

import asyncio
from typing import cast

from evenkeel.errors import DisconnectedError
from evenkeel.wire.socket_messages import Unknown
from evenkeel_reference.batching_client import BatchingClient
from evenkeel_reference.reference_client import ReferenceClient, WriteOutcome
from evenkeel_reference.reference_entries import Batch
from evenkeel_reference.reference_server import Written


class Client:
    """Notes what is written; answers when told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[Batch, asyncio.Future[WriteOutcome]]] = []
        self.connected = True

    def write(self, group: int, entry: Batch) -> asyncio.Future[WriteOutcome]:
        if not self.connected:
            raise DisconnectedError("gone")
        future: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        self.sent.append((entry, future))
        return future


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def batching(client: Client, *, at_once: int = 1, most: int = 100) -> BatchingClient:
    return BatchingClient(cast("ReferenceClient", client), 1, writer="w", at_once=at_once, most=most)


async def test_writes_gather_while_others_are_on_their_way() -> None:
    """What one turn brings leaves at once; what comes meanwhile goes together, in order, under the next token."""
    client = Client()
    writes = batching(client)
    first = [writes.put(b"a", b"1"), writes.put(b"b", b"2")]
    await turns()
    second = [writes.put(b"a", None), writes.put(b"c", b"3")]
    await turns()
    assert [entry for entry, _ in client.sent] == [Batch("w", 1, [(b"a", b"1"), (b"b", b"2")])]
    client.sent[0][1].set_result(Written(5, 1))
    assert await asyncio.gather(*first) == [Written(5, 1), Written(5, 1)]
    await turns()
    assert client.sent[1][0] == Batch("w", 2, [(b"a", None), (b"c", b"3")])
    assert not any(write.done() for write in second)


async def test_no_entry_holds_more_than_it_may() -> None:
    """What is too much for one entry goes in several, as many at a time as may be."""
    client = Client()
    writes = batching(client, at_once=2, most=2)
    for number in range(5):
        writes.put(b"%d" % number, b"")
    await turns()
    assert [len(entry.changes) for entry, _ in client.sent] == [2, 2]
    client.sent[0][1].set_result(Written(5, 1))
    await turns()
    assert [len(entry.changes) for entry, _ in client.sent] == [2, 2, 1]


async def test_nobody_waits_for_a_connection_that_is_gone() -> None:
    """Whatever was gathered when the connection went has an outcome that nobody knows."""
    client = Client()
    writes = batching(client)
    client.connected = False
    assert await writes.put(b"a", b"1") == Unknown()
    client.connected = True
    write = writes.put(b"a", b"2")
    await turns()
    client.sent[0][1].set_result(Unknown())
    assert await write == Unknown()

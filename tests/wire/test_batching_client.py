"""`BatchingClient` puts small writes into shared entries."""

from __future__ import annotations

import asyncio
from typing import cast

from evenkeel.errors import DisconnectedError
from evenkeel.wire.socket_messages import Unknown
from evenkeel_reference.batching_client import BatchingClient
from evenkeel_reference.reference_client import ReferenceClient, WriteOutcome
from evenkeel_reference.reference_entries import Batch
from evenkeel_reference.reference_server import Written


class FakeClient:
    """Records writes; the test sets their results."""

    def __init__(self) -> None:
        self.sent: list[tuple[Batch, asyncio.Future[WriteOutcome]]] = []
        self.connected = True

    def write(self, group: int, entry: Batch) -> asyncio.Future[WriteOutcome]:
        if not self.connected:
            raise DisconnectedError("gone")
        future: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        self.sent.append((entry, future))
        return future


async def run_loop(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def batching(client: FakeClient, *, max_in_flight: int = 1, max_batch: int = 100) -> BatchingClient:
    return BatchingClient(
        cast("ReferenceClient", client), 1, writer="w", max_in_flight=max_in_flight, max_batch=max_batch
    )


async def test_writes_are_batched_while_others_are_in_flight() -> None:
    """Writes of one loop iteration leave at once; later writes wait and share the next token, in order."""
    client = FakeClient()
    writes = batching(client)
    first = [writes.put(b"a", b"1"), writes.put(b"b", b"2")]
    await run_loop()
    second = [writes.put(b"a", None), writes.put(b"c", b"3")]
    await run_loop()
    assert [entry for entry, _ in client.sent] == [Batch("w", 1, [(b"a", b"1"), (b"b", b"2")])]
    client.sent[0][1].set_result(Written(5, 1))
    assert await asyncio.gather(*first) == [Written(5, 1), Written(5, 1)]
    await run_loop()
    assert client.sent[1][0] == Batch("w", 2, [(b"a", None), (b"c", b"3")])
    assert not any(write.done() for write in second)


async def test_the_size_of_an_entry_is_limited() -> None:
    """Writes beyond the limit of an entry are split, and no more entries than allowed are in flight."""
    client = FakeClient()
    writes = batching(client, max_in_flight=2, max_batch=2)
    for number in range(5):
        writes.put(b"%d" % number, b"")
    await run_loop()
    assert [len(entry.changes) for entry, _ in client.sent] == [2, 2]
    client.sent[0][1].set_result(Written(5, 1))
    await run_loop()
    assert [len(entry.changes) for entry, _ in client.sent] == [2, 2, 1]


async def test_writes_without_a_connection_are_unknown() -> None:
    """Writes that were queued when the connection was lost have an unknown outcome."""
    client = FakeClient()
    writes = batching(client)
    client.connected = False
    assert await writes.put(b"a", b"1") == Unknown()
    client.connected = True
    write = writes.put(b"a", b"2")
    await run_loop()
    client.sent[0][1].set_result(Unknown())
    assert await write == Unknown()

"""The session in docs/state-machines.md matches the implementation."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evenkeel.wire.store_socket import StoreSocket
from evenkeel_reference.reference_machine import ReferenceMachine
from tests.wire.support import Raw

PAGE = Path(__file__).parents[2] / "docs" / "state-machines.md"


def session(shared: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield sender and frame of each line, with the test's directory instead of the page's."""
    block = re.search(r"^## A session$.*?^```text$(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    for line in block[1].replace("/shared", str(shared)).splitlines():
        if line:
            sender, _, frame = line.partition(" ")
            yield sender, ast.literal_eval(frame.strip())


def send_request(store: StoreSocket, frame: list[Any]) -> asyncio.Future[Any] | None:
    """Make the store send a request of the page; it sends its answers without help."""
    _, group, replica, body = frame
    match body:
        case ["propose", data]:
            return store.propose(group, replica, data)
        case ["read_index"]:
            return store.read_index(group, replica)
        case ["drain"]:
            return store.drain()
    return None


async def test_session_of_the_page(tmp_path: Path) -> None:
    """The reference state machine sends every line that the page attributes to the store."""
    (tmp_path / "snapshot").mkdir()
    connected: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_unix_server(
        lambda reader, writer: connected.set_result(Raw(reader, writer)), tmp_path / "raft.sock"
    )
    machine = ReferenceMachine(tmp_path / "data")
    store = StoreSocket(tmp_path / "raft.sock", volume=machine.volume, state_machine=machine)
    running = asyncio.create_task(store.run())
    sidecar = await connected
    requests = []
    for sender, frame in session(tmp_path):
        if sender == "sidecar":
            sidecar.send(frame)
        else:
            requests += [future for future in [send_request(store, frame)] if future is not None]
            assert await sidecar.receive() == frame
    answers = await asyncio.gather(*requests)
    assert [type(answer).__name__ for answer in answers] == ["Committed", "ReadAt", "Drained"]
    assert machine.volume == "vol-1"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sidecar.close()
    server.close()
    await machine.stop()

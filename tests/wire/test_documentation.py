"""The session in docs/state-machines.md is what really happens."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evenkeel.wire.store_socket import StoreSocket
from evenkeel_reference.reference_machine import Machine
from tests.wire.support import Raw

PAGE = Path(__file__).parents[2] / "docs" / "state-machines.md"


def session(shared: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield who says what, with a directory of the test's in place of the page's."""
    block = re.search(r"^## A session$.*?^```text$(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    for line in block[1].replace("/shared", str(shared)).splitlines():
        if line:
            who, _, frame = line.partition(" ")
            yield who, ast.literal_eval(frame.strip())


def ask(end: StoreSocket, frame: list[Any]) -> asyncio.Future[Any] | None:
    """Have the store ask what the page says it asks; its answers come by themselves."""
    _, group, replica, body = frame
    match body:
        case ["propose", data]:
            return end.propose(group, replica, data)
        case ["read_index"]:
            return end.read_index(group, replica)
        case ["drain"]:
            return end.drain()
    return None


async def test_session_of_the_page(tmp_path: Path) -> None:
    """Played against the reference state machine, every line of the store's comes as the page says."""
    (tmp_path / "snapshot").mkdir()
    connected: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_unix_server(
        lambda reader, writer: connected.set_result(Raw(reader, writer)), tmp_path / "raft.sock"
    )
    machine = Machine(tmp_path / "data")
    end = StoreSocket(tmp_path / "raft.sock", volume=machine.volume, state_machine=machine)
    running = asyncio.create_task(end.run())
    sidecar = await connected
    asked = []
    for who, frame in session(tmp_path):
        if who == "sidecar":
            sidecar.say(frame)
        else:
            asked += [future for future in [ask(end, frame)] if future is not None]
            assert await sidecar.hear() == frame
    answers = await asyncio.gather(*asked)
    assert [type(answer).__name__ for answer in answers] == ["Committed", "ReadAt", "Drained"]
    assert machine.volume == "vol-1"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sidecar.close()
    server.close()
    await machine.stop()

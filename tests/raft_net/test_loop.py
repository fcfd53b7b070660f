"""The loop a sidecar runs on, and that everything works on it."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from evenkeel.wire import loop
from evenkeel_raft.core.messages import InstallSnapshot, ReadRequest
from evenkeel_raft.core.types import Conf, SnapshotMeta
from evenkeel_raft.net.files.manifest import make_manifest
from evenkeel_raft.net.files.sender import Outcome, Sent
from tests.raft_net.support import Store, introduce


async def loop_module() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uvloop is used if it can be, and asyncio does without it."""
    assert loop.run(loop_module()) == ("asyncio" if find_spec("uvloop") is None else "uvloop")
    monkeypatch.setattr(loop, "find_spec", lambda name: None)
    assert loop.run(loop_module()) == "asyncio"


def test_messages_and_files_on_that_loop(tmp_path: Path) -> None:
    """Two stores exchange messages and a snapshot on the loop that sidecars run on."""

    async def exchange() -> Sent:
        one, two = await Store("store-1", tmp_path).start(), await Store("store-2", tmp_path).start()
        introduce(one, two)
        await one.handler.up.get()
        one.peers.send("store-2", ReadRequest(1, 0, 1, 2, 3, 4))
        assert (await two.handler.messages.get())[0] == "store-1"
        (tmp_path / "file").write_bytes(bytes(5_000_000))
        manifest = make_manifest(tmp_path, ["file"])
        message = InstallSnapshot(7, 0, 1, 2, 3, SnapshotMeta(9, 3, Conf((1, 2))))
        sent = await one.peers.send_snapshot("store-2", message=message, manifest=manifest, directory=tmp_path)
        await one.peers.close()
        await two.peers.close()
        return sent

    assert loop.run(exchange()) == Sent(Outcome.STORED)

"""The endpoint on the event loops that a sidecar can run on."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from evenkeel.runtime import event_loop
from evenkeel.wire.frame_connection import FrameConnection
from evenkeel_raft.core.raft_messages import InstallSnapshot, ReadRequest
from evenkeel_raft.core.raft_types import Conf, SnapshotMeta
from evenkeel_raft.net import peer_endpoint
from evenkeel_raft.net.files.file_sender import Outcome, Sent
from evenkeel_raft.net.files.snapshot_manifest import make_manifest
from tests.raft_net.support import HOST, Store, introduce

Factory = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("factory", [asyncio.new_event_loop, event_loop.loop_factory()])


async def loop_module() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop is used if it is installed, asyncio otherwise."""
    assert event_loop.run(loop_module()) == ("asyncio" if find_spec("uvloop") is None else "uvloop")
    monkeypatch.setattr(event_loop, "find_spec", lambda name: None)
    assert event_loop.run(loop_module()) == "asyncio"


def test_messages_and_files_on_that_loop(tmp_path: Path) -> None:
    """Two stores exchange messages and a snapshot on the sidecar's event loop."""

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

    assert event_loop.run(exchange()) == Sent(Outcome.STORED)


@LOOPS
@pytest.mark.parametrize("turns", range(6))
def test_closing_while_clients_connect(tmp_path: Path, factory: Factory, turns: int) -> None:
    """Closing ends incoming connections at any stage, without waiting for them or leaking sockets."""

    async def close() -> list[bytes]:
        store = await Store("store-1", tmp_path).start()
        callers = [socket.create_connection((HOST, store.port)) for _ in range(5)]
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await store.peers.close()
        return [await asyncio.to_thread(last_words, caller) for caller in callers]

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(close()) == [b""] * 5
    gc.collect()


def last_words(caller: socket.socket) -> bytes:
    with caller:
        caller.settimeout(10)
        try:
            return caller.recv(1)
        except ConnectionError:
            return b""


@LOOPS
def test_dial_that_times_out_as_it_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: Factory) -> None:
    """A dial that times out just as it connects is retried, and the store can be closed."""

    async def call() -> None:
        one, two = await Store("store-1", tmp_path).start(), await Store("store-2", tmp_path).start()
        made, timeout = peer_endpoint._Dialled.made, asyncio.timeout
        deadlines: list[asyncio.Timeout] = []

        def made_too_late(self: peer_endpoint._Dialled, connection: FrameConnection) -> None:
            made(self, connection)
            monkeypatch.undo()
            deadlines[0].reschedule(0)

        def noted(seconds: float | None) -> asyncio.Timeout:
            deadlines.append(timeout(seconds))
            return deadlines[-1]

        monkeypatch.setattr(peer_endpoint._Dialled, "made", made_too_late)
        monkeypatch.setattr(asyncio, "timeout", noted)
        introduce(one, two)
        async with timeout(10):
            await one.handler.up.get()
            await one.peers.close()
            await two.peers.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(call())


def test_accepting_continues_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is briefly out of file descriptors accepts connections afterwards."""

    async def call() -> None:
        one, two = await Store("store-1", tmp_path).start(), await Store("store-2", tmp_path).start()
        accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "too many"), OSError(errno.EMFILE, "too many")]

        def refuse(self: socket.socket) -> object:
            if failures:
                raise failures.pop()
            return accept(self)

        monkeypatch.setattr(socket.socket, "accept", refuse)
        introduce(one, two)
        async with asyncio.timeout(10):
            await two.handler.up.get()
        assert not failures
        await one.peers.close()
        await two.peers.close()

    event_loop.run(call())

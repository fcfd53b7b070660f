"""The reference state machine as a process: after SIGKILL it has lost nothing and applied nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from evenkeel.errors import DisconnectedError, StateMachineError
from evenkeel.wire import socket_messages as m
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel_reference.reference_client import ReferenceClient
from evenkeel_reference.reference_entries import Barrier, Batch, Conditional, Delete, Entry, Upsert, encode_entry
from evenkeel_reference.reference_server import Held, StatusIs, Written
from evenkeel_reference.reference_snapshot import read_snapshot
from evenkeel_reference.reference_state import Contents
from tests.wire.single import GROUP, REPLICA, Single
from tests.wire.support import Sidecar

Process = asyncio.subprocess.Process
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., asyncio.Future[Process]]]:
    """Start reference state machines; those still running are killed after the test."""
    started: list[Process] = []

    async def run(*options: str, data: str = "data", dies_at: int = 0) -> Process:
        program = ["tests.wire.dying", str(dies_at)] if dies_at else ["evenkeel_reference"]
        where = ["--socket", str(tmp_path / "sm.sock"), "--data", str(tmp_path / data)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *program, *where, *options, stdout=pipe, stderr=pipe, cwd=ROOT
        )
        started.append(process)
        return process

    yield run  # type: ignore[misc]
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    await process.wait()


class Model:
    """The expected state after a prefix of the log."""

    def __init__(self) -> None:
        self.values: dict[bytes, tuple[bytes, int]] = {}
        self.tokens: dict[tuple[str, int], int] = {}

    def apply(self, entry: Entry) -> None:
        if isinstance(entry, Barrier):
            return
        if entry.writer and (entry.writer, entry.sequence) in self.tokens:
            return
        ok = True
        match entry:
            case Batch(changes=changes):
                for key, value in changes:
                    self._put(key, value)
            case Conditional(key=key, expected=expected, value=value):
                ok = self.values.get(key, (None, 0))[0] == expected
                if ok:
                    self._put(key, value)
            case Upsert(key=key, value=value):
                self._put(key, value)
            case Delete(key=key):
                self._put(key, None)
        if entry.writer:
            self.tokens[entry.writer, entry.sequence] = int(ok)

    def _put(self, key: bytes, value: bytes | None) -> None:
        held = self.values.pop(key, None)
        if value is not None:
            self.values[key] = (value, held[1] + 1 if held else 1)


def random_entry(rng: random.Random, index: int) -> Entry:
    """Return an entry whose effect differs when it is applied twice or skipped; some tokens are repeated."""
    key = b"k%d" % rng.randrange(5)
    writer = rng.choice(["", "a", "b"])
    sequence = max(1, index - rng.choice([0, 0, 0, 0, 7]))
    match rng.randrange(10):
        case 0:
            return Delete(writer, sequence, key)
        case 1:
            return Barrier()
        case 2:
            keys = [b"k%d" % rng.randrange(5) for _ in range(6)]
            return Batch(writer, sequence, [(key, rng.choice([None, b"%d" % index])) for key in keys])
        case 3 | 4 | 5:
            return Conditional("c", sequence, key, rng.choice([None, b"%d" % (index - 1)]), b"%d" % index)
        case _:
            return Upsert(writer, sequence, key, b"%d" % index * rng.choice([1, 500]))


async def snapshot_of(sidecar: SidecarSocket, directory: Path) -> Contents:
    directory.mkdir()  # noqa: ASYNC240
    taken = await sidecar.snapshot(GROUP, REPLICA, directory)
    return read_snapshot(directory, index=taken.index)


async def assert_state(sidecar: SidecarSocket, log: list[Entry], applied: int, directory: Path) -> None:
    contents = await snapshot_of(sidecar, directory)
    model = Model()
    for entry in log[:applied]:
        model.apply(entry)
    assert contents.applied == applied
    assert {key: (value, version) for key, value, version in contents.entries} == model.values
    assert {(writer, sequence): ok for writer, sequence, ok in contents.tokens} == model.tokens


async def send_some(
    sidecar: SidecarSocket, log: list[Entry], applied: int, rng: random.Random
) -> list[asyncio.Future[int]]:
    """Send up to 40 more entries, several in each request."""
    futures = []
    for _ in range(rng.randrange(1, 9)):
        size = rng.randrange(1, 6)
        entries = []
        for index in range(applied + 1, applied + size + 1):
            if len(log) < index:
                log.append(random_entry(rng, index))
            entries.append(m.LoggedEntry(index, encode_entry(log[index - 1])))
        applied += size
        futures.append(sidecar.apply(GROUP, REPLICA, first=applied - size + 1, last=applied, entries=entries))
    return futures


async def test_killed_at_random(tmp_path: Path, start: Callable[..., asyncio.Future[Process]]) -> None:
    """After SIGKILL all acknowledged entries are applied, and the state matches the applied index exactly."""
    rng = random.Random(11)
    handler = Sidecar()
    sidecar = SidecarSocket(tmp_path / "sm.sock", volume="vol-1", handler=handler)
    await sidecar.start()
    log: list[Entry] = []
    acknowledged = 0
    for life in range(14):
        # The test kills it at any moment, or it kills itself between two SQL statements, by turns.
        process = await start(dies_at=rng.randrange(14, 90) if life % 2 else 0)
        await handler.hello.get()
        opened = await sidecar.open(GROUP, REPLICA)
        assert acknowledged <= opened.applied <= len(log)
        del log[opened.applied :]  # the next leader may log other entries instead of those that were never applied
        await assert_state(sidecar, log, opened.applied, tmp_path / f"life-{life}")
        futures = await send_some(sidecar, log, opened.applied, rng)
        with contextlib.suppress(DisconnectedError):
            for future in futures[: len(futures) if life % 2 else rng.randrange(len(futures) + 1)]:
                acknowledged = await future
        await kill(process)
        await handler.gone.wait()
        for future in futures:
            with contextlib.suppress(DisconnectedError):
                acknowledged = max(acknowledged, await future)
    assert acknowledged > 50
    await sidecar.close()


async def test_killed_while_restoring(tmp_path: Path, start: Callable[..., asyncio.Future[Process]]) -> None:
    """After SIGKILL during a restore the state is either the old or the new one."""
    rng = random.Random(5)
    handler = Sidecar()
    sidecar = SidecarSocket(tmp_path / "sm.sock", volume="vol-1", handler=handler)
    await sidecar.start()
    process = await start(data="source")
    await handler.hello.get()
    await sidecar.open(GROUP, REPLICA)
    log: list[Entry] = [Upsert("w", index, b"%d" % index, bytes(2000)) for index in range(1, 3001)]
    entries = [m.LoggedEntry(index, encode_entry(entry)) for index, entry in enumerate(log, start=1)]
    await sidecar.apply(GROUP, REPLICA, first=1, last=3000, entries=entries)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    assert (await sidecar.snapshot(GROUP, REPLICA, snapshot)).index == 3000
    await kill(process)
    await handler.gone.wait()
    seen = set()
    for life in range(4):
        process = await start()
        await handler.hello.get()
        opened = await sidecar.open(GROUP, REPLICA)
        seen.add(opened.applied)
        assert opened.applied in (0, 3000)
        if opened.applied:
            contents = await snapshot_of(sidecar, tmp_path / f"check-{life}")
            assert {key for key, _, _ in contents.entries} == {b"%d" % index for index in range(1, 3001)}
        restored = sidecar.restore(GROUP, REPLICA, snapshot, index=3000)
        if life == 2:
            assert await restored == m.Applied(3000)
        for _ in range(rng.randrange(400)):
            await asyncio.sleep(0)
        await kill(process)
        await handler.gone.wait()
    assert 3000 in seen
    await sidecar.close()


async def test_clients_through_a_sidecar(tmp_path: Path, start: Callable[..., asyncio.Future[Process]]) -> None:
    """Clients write, compare, read and take hashes; on SIGTERM the store asks its sidecar to drain, then stops."""
    single = Single(tmp_path / "sm.sock")
    await single.socket.start()
    process = await start("--listen", "127.0.0.1:0")
    assert process.stdout is not None
    port = int((await process.stdout.readline()).rpartition(b":")[2])
    assert (await asyncio.shield(single.opened)).state == "empty"
    client = await ReferenceClient.connect("127.0.0.1", port)
    assert await client.upsert(GROUP, b"k", b"1", writer="w", sequence=1) == Written(1, 1)
    swap = client.compare_and_set(GROUP, b"k", expected=b"1", value=b"2", writer="w", sequence=2)
    lost = client.compare_and_set(GROUP, b"k", expected=b"1", value=b"3", writer="w", sequence=3)
    assert (await swap, await lost) == (Written(2, 1, True), Written(3, 1, False))
    assert await client.get(GROUP, b"k") == Held(b"2", 2, 3)
    await client.delete(GROUP, b"k")
    assert await client.get(GROUP, b"k", stale=False) == Held(None, 0, 4)
    barrier = await client.barrier(GROUP)
    assert isinstance(barrier, Written)
    status = await client.status(GROUP)
    assert status == StatusIs(REPLICA, 5, True, 1, "", {5: barrier.hash})
    assert await client.upsert(99, b"k", b"1") == m.NotLeader("store-2")
    process.terminate()
    assert await process.wait() == 0
    assert single.drained.is_set()
    await client.close()
    await single.socket.close()


async def test_sidecar_restart_replays_what_is_missing(
    tmp_path: Path, start: Callable[..., asyncio.Future[Process]]
) -> None:
    """When the sidecar is replaced, the store reconnects and reports its applied index."""
    single = Single(tmp_path / "sm.sock")
    await single.socket.start()
    process = await start("--listen", "127.0.0.1:0")
    assert process.stdout is not None
    port = int((await process.stdout.readline()).rpartition(b":")[2])
    client = await ReferenceClient.connect("127.0.0.1", port)
    await asyncio.shield(single.opened)
    await client.upsert(GROUP, b"k", b"1", writer="w", sequence=1)
    await client.barrier(GROUP)
    await single.socket.close()
    successor = Single(tmp_path / "sm.sock")
    successor.log = [*single.log, m.LoggedEntry(3, encode_entry(Upsert("w", 2, b"k", b"2")))]
    await successor.socket.start()
    assert await asyncio.shield(successor.opened) == m.Opened(2, "ok")
    assert await client.get(GROUP, b"k") == Held(b"2", 2, 3)
    await client.close()
    await successor.socket.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--socket", "/" + "x" * 200], "at most 107"),
        (["--data", "/proc/nothing/here"], "--data"),
    ],
)
async def test_wrong_options(start: Callable[..., asyncio.Future[Process]], options: list[str], message: str) -> None:
    """A wrong option ends the process with one line that names the option."""
    process = await start(*options)
    _, stderr = await process.communicate()
    assert process.returncode == 1
    assert message in stderr.decode()
    assert "Traceback" not in stderr.decode()


async def test_two_processes_never_share_a_directory(
    tmp_path: Path, start: Callable[..., asyncio.Future[Process]]
) -> None:
    """The second process reports that the directory is in use."""
    first = await start("--listen", "127.0.0.1:0")
    assert first.stdout is not None
    await first.stdout.readline()
    second = await start()
    _, stderr = await second.communicate()
    assert "locked by another process" in stderr.decode()


async def test_damaged_state_is_reported(tmp_path: Path, start: Callable[..., asyncio.Future[Process]]) -> None:
    """A damaged state file is renamed, and the group is reported as damaged until it is restored."""
    handler = Sidecar()
    sidecar = SidecarSocket(tmp_path / "sm.sock", volume="vol-1", handler=handler)
    await sidecar.start()
    process = await start()
    await handler.hello.get()
    await sidecar.open(GROUP, REPLICA)
    await sidecar.apply(
        GROUP, REPLICA, first=1, last=1, entries=[m.LoggedEntry(1, encode_entry(Upsert("", 0, b"a", b"1")))]
    )
    (tmp_path / "snapshot").mkdir()
    await sidecar.snapshot(GROUP, REPLICA, tmp_path / "snapshot")
    process.terminate()
    (await handler.drains.get())(m.Drained())
    await process.wait()
    file = tmp_path / "data" / "state.db"
    file.write_bytes(b"\xff" * 100 + file.read_bytes()[100:])
    process = await start()
    await handler.hello.get()
    opened = await sidecar.open(GROUP, REPLICA)
    assert (opened.applied, opened.state) == (0, "damaged")
    assert "state.db" in opened.detail
    with pytest.raises(StateMachineError, match="the applied index is 0"):
        await sidecar.apply(GROUP, REPLICA, first=2, last=2, entries=[])
    assert await sidecar.restore(GROUP, REPLICA, tmp_path / "snapshot", index=1) == m.Applied(1)
    assert await sidecar.open(GROUP, REPLICA) == m.Opened(1, "ok")
    assert (tmp_path / "data" / "state.db.damaged").exists()
    await sidecar.close()

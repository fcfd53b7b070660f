"""The reference state machine as a process: killed at any moment, it has lost nothing and applied nothing twice."""

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


async def die(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    await process.wait()


class Model:
    """What the state must be after some prefix of the log."""

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
    """Entries whose effect shows when one is applied twice or left out; every fifth token was logged before."""
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


async def snapshot_of(end: SidecarSocket, directory: Path) -> Contents:
    directory.mkdir()  # noqa: ASYNC240
    taken = await end.snapshot(GROUP, REPLICA, directory)
    return read_snapshot(directory, index=taken.index)


async def assert_state(end: SidecarSocket, log: list[Entry], applied: int, directory: Path) -> None:
    contents = await snapshot_of(end, directory)
    model = Model()
    for entry in log[:applied]:
        model.apply(entry)
    assert contents.applied == applied
    assert {key: (value, version) for key, value, version in contents.entries} == model.values
    assert {(writer, sequence): ok for writer, sequence, ok in contents.tokens} == model.tokens


async def send_some(
    end: SidecarSocket, log: list[Entry], applied: int, rng: random.Random
) -> list[asyncio.Future[int]]:
    """Send up to 40 more entries in requests of several, some of whose indexes hold no entry at all."""
    futures = []
    for _ in range(rng.randrange(1, 9)):
        size = rng.randrange(1, 6)
        entries = []
        for index in range(applied + 1, applied + size + 1):
            if len(log) < index:
                log.append(random_entry(rng, index))
            entries.append(m.LoggedEntry(index, encode_entry(log[index - 1])))
        applied += size
        futures.append(end.apply(GROUP, REPLICA, first=applied - size + 1, last=applied, entries=entries))
    return futures


async def test_killed_at_random(tmp_path: Path, start: Callable[..., asyncio.Future[Process]]) -> None:
    """What was acknowledged is there after SIGKILL, and the state is that of exactly the entries up to its index."""
    rng = random.Random(11)
    handler = Sidecar()
    end = SidecarSocket(tmp_path / "sm.sock", volume="vol-1", handler=handler)
    await end.start()
    log: list[Entry] = []
    acknowledged = 0
    for life in range(14):
        # By turns it dies from outside at any moment, and between two statements of its own choice.
        process = await start(dies_at=rng.randrange(14, 90) if life % 2 else 0)
        await handler.hello.get()
        opened = await end.open(GROUP, REPLICA)
        assert acknowledged <= opened.applied <= len(log)
        del log[opened.applied :]  # what was never applied may be logged differently by the next leader
        await assert_state(end, log, opened.applied, tmp_path / f"life-{life}")
        futures = await send_some(end, log, opened.applied, rng)
        with contextlib.suppress(DisconnectedError):
            for future in futures[: len(futures) if life % 2 else rng.randrange(len(futures) + 1)]:
                acknowledged = await future
        await die(process)
        await handler.gone.wait()
        for future in futures:
            with contextlib.suppress(DisconnectedError):
                acknowledged = max(acknowledged, await future)
    assert acknowledged > 50
    await end.close()


async def test_killed_while_restoring(tmp_path: Path, start: Callable[..., asyncio.Future[Process]]) -> None:
    """After SIGKILL during a restore the state is the old one or the new one, never a mixture."""
    rng = random.Random(5)
    handler = Sidecar()
    end = SidecarSocket(tmp_path / "sm.sock", volume="vol-1", handler=handler)
    await end.start()
    process = await start(data="source")
    await handler.hello.get()
    await end.open(GROUP, REPLICA)
    log: list[Entry] = [Upsert("w", index, b"%d" % index, bytes(2000)) for index in range(1, 3001)]
    entries = [m.LoggedEntry(index, encode_entry(entry)) for index, entry in enumerate(log, start=1)]
    await end.apply(GROUP, REPLICA, first=1, last=3000, entries=entries)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    assert (await end.snapshot(GROUP, REPLICA, snapshot)).index == 3000
    await die(process)
    await handler.gone.wait()
    seen = set()
    for life in range(4):
        process = await start()
        await handler.hello.get()
        opened = await end.open(GROUP, REPLICA)
        seen.add(opened.applied)
        assert opened.applied in (0, 3000)
        if opened.applied:
            contents = await snapshot_of(end, tmp_path / f"check-{life}")
            assert {key for key, _, _ in contents.entries} == {b"%d" % index for index in range(1, 3001)}
        restored = end.restore(GROUP, REPLICA, snapshot, index=3000)
        if life == 2:
            assert await restored == m.Applied(3000)
        for _ in range(rng.randrange(400)):
            await asyncio.sleep(0)
        await die(process)
        await handler.gone.wait()
    assert 3000 in seen
    await end.close()


async def test_clients_through_a_sidecar(tmp_path: Path, start: Callable[..., asyncio.Future[Process]]) -> None:
    """Clients write, compare, read and take hashes; when the store drains and stops, it says so to its sidecar."""
    single = Single(tmp_path / "sm.sock")
    await single.end.start()
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
    await single.end.close()


async def test_sidecar_restart_replays_what_is_missing(
    tmp_path: Path, start: Callable[..., asyncio.Future[Process]]
) -> None:
    """When the sidecar is replaced the store connects again, and says how far it is."""
    single = Single(tmp_path / "sm.sock")
    await single.end.start()
    process = await start("--listen", "127.0.0.1:0")
    assert process.stdout is not None
    port = int((await process.stdout.readline()).rpartition(b":")[2])
    client = await ReferenceClient.connect("127.0.0.1", port)
    await asyncio.shield(single.opened)
    await client.upsert(GROUP, b"k", b"1", writer="w", sequence=1)
    await client.barrier(GROUP)
    await single.end.close()
    successor = Single(tmp_path / "sm.sock")
    successor.log = [*single.log, m.LoggedEntry(3, encode_entry(Upsert("w", 2, b"k", b"2")))]
    await successor.end.start()
    assert await asyncio.shield(successor.opened) == m.Opened(2, "ok")
    assert await client.get(GROUP, b"k") == Held(b"2", 2, 3)
    await client.close()
    await successor.end.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--socket", "/" + "x" * 200], "at most 107"),
        (["--data", "/proc/nothing/here"], "--data"),
    ],
)
async def test_wrong_options(start: Callable[..., asyncio.Future[Process]], options: list[str], said: str) -> None:
    """A wrong option ends the process with one line that names it."""
    process = await start(*options)
    _, stderr = await process.communicate()
    assert process.returncode == 1
    assert said in stderr.decode()
    assert "Traceback" not in stderr.decode()


async def test_two_processes_never_share_a_directory(
    tmp_path: Path, start: Callable[..., asyncio.Future[Process]]
) -> None:
    """The second process says that the directory is in use."""
    first = await start("--listen", "127.0.0.1:0")
    assert first.stdout is not None
    await first.stdout.readline()
    second = await start()
    _, stderr = await second.communicate()
    assert "another process uses" in stderr.decode()


async def test_damaged_state_is_said_to_be(tmp_path: Path, start: Callable[..., asyncio.Future[Process]]) -> None:
    """A state file that cannot be read is put aside, the group is damaged until it is restored, and fine afterwards."""
    handler = Sidecar()
    end = SidecarSocket(tmp_path / "sm.sock", volume="vol-1", handler=handler)
    await end.start()
    process = await start()
    await handler.hello.get()
    await end.open(GROUP, REPLICA)
    await end.apply(
        GROUP, REPLICA, first=1, last=1, entries=[m.LoggedEntry(1, encode_entry(Upsert("", 0, b"a", b"1")))]
    )
    (tmp_path / "snapshot").mkdir()
    await end.snapshot(GROUP, REPLICA, tmp_path / "snapshot")
    process.terminate()
    (await handler.drains.get())(m.Drained())
    await process.wait()
    file = tmp_path / "data" / "state.db"
    file.write_bytes(b"\xff" * 100 + file.read_bytes()[100:])
    process = await start()
    await handler.hello.get()
    opened = await end.open(GROUP, REPLICA)
    assert (opened.applied, opened.state) == (0, "damaged")
    assert "state.db" in opened.detail
    with pytest.raises(StateMachineError, match="0 is applied"):
        await end.apply(GROUP, REPLICA, first=2, last=2, entries=[])
    assert await end.restore(GROUP, REPLICA, tmp_path / "snapshot", index=1) == m.Applied(1)
    assert await end.open(GROUP, REPLICA) == m.Opened(1, "ok")
    assert (tmp_path / "data" / "state.db.damaged").exists()
    await end.close()

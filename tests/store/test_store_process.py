"""The store as a process: killed at any moment, it loses nothing and applies nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evenkeel.errors import DisconnectedError
from evenkeel.metastore.etcd_server import free_port
from evenkeel.wire import socket_messages as m
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel_store.engine.journal import KeptGroup
from evenkeel_store.engine.snapshot_files import fill_log, load_tables, read_files, write_files
from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle
from evenkeel_store.process.main import main
from tests.store.model import Model, random_log
from tests.store.serving import Client
from tests.store.single_sidecar import Sidecar as Single
from tests.store.support import GROUP, REPLICA, Bench, columns, upsert
from tests.store.test_replicas import check
from tests.wire.support import Sidecar

pytestmark = pytest.mark.processes

Process = asyncio.subprocess.Process
Start = Callable[..., asyncio.Future[Process]]
ROOT = Path(__file__).parents[2]
NO_ETCD = "http://127.0.0.1:9"


def flags(directory: Path) -> list[str]:
    return [
        *("--store", "main-0", "--store-cluster", "main", "--etcd-endpoints", NO_ETCD),
        *("--socket", str(directory / "sm.sock"), "--data", str(directory / "data")),
        *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
    ]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start stores; those still running are killed after the test."""
    started: list[Process] = []

    async def run(*options: str, dies_at: int = 0) -> Process:
        program = ["tests.store.crashing_store", str(dies_at)] if dies_at else ["evenkeel_store.process.main"]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *program, *flags(tmp_path), *options, stdout=pipe, stderr=pipe, cwd=ROOT
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


async def event(process: Process, name: str) -> dict[str, Any]:
    """Wait for a log event."""
    assert process.stderr is not None
    while line := await process.stderr.readline():
        line_fields: dict[str, Any] = msgspec.json.decode(line) if line.startswith(b"{") else {"event": line.decode()}
        if line_fields["event"] == name:
            return line_fields
    raise AssertionError(f"{name} was never logged")


def load_snapshot(directory: Path, bench: Bench) -> None:
    """Load a snapshot into a bench's group."""
    index = msgspec.json.decode((directory / "about").read_bytes())["index"]
    files = read_files(directory, index=index)
    number = bench.engine.table_number()
    layout = files.layout(GROUP, rows=number)
    if layout is not None:
        load_tables(bench.engine.database, files, layout, throttle=SnapshotThrottle())
    metadata = msgspec.structs.replace(files.kept.metadata, rows=number)
    bench.engine.adopt(GROUP, REPLICA, KeptGroup(metadata, files.kept.uses), partial(fill_log, files))


class RandomLog:
    """A random log, with the model's state after each entry."""

    def __init__(self, seed: int) -> None:
        self._draw = random_log(random.Random(seed))
        self.entries: list[bytes] = []
        self.models = [Model()]

    def upto(self, index: int) -> None:
        while len(self.entries) < index:
            entry, rows = next(self._draw)
            self.entries.append(entry)
            self.models.append(self.models[-1].copy())
            self.models[-1].apply(entry, rows)


async def test_killed_at_random(tmp_path: Path, start: Start) -> None:
    """After SIGKILL nothing acknowledged is lost, and the state is exactly that of its applied index."""
    rng, log = random.Random(11), RandomLog(3)
    handler = Sidecar()
    end = SidecarSocket(tmp_path / "sm.sock", volume="vol-1", handler=handler)
    await end.start()
    bench = Bench(tmp_path / "bench")
    bench.open()
    acknowledged = 0
    for life in range(7):
        # Alternate between SIGKILL from outside and a crash before a random statement.
        process = await start(dies_at=rng.randrange(8, 70) if life % 2 else 0)
        await handler.hello.get()
        with contextlib.suppress(DisconnectedError):
            opened = await end.open(GROUP, REPLICA, table="orders.1")
            assert acknowledged <= opened.applied <= len(log.entries)
            (tmp_path / f"life-{life}").mkdir()
            acknowledged = await live(end, log, opened.applied, rng=rng, at=tmp_path / f"life-{life}", bench=bench)
        await die(process)
        await handler.gone.wait()
    assert acknowledged > 25
    bench.close()
    await end.close()


async def live(end: SidecarSocket, log: RandomLog, applied: int, *, rng: random.Random, at: Path, bench: Bench) -> int:
    """Compare the state with the model, send more entries, and await some of the answers."""
    taken = await end.snapshot(GROUP, REPLICA, at)
    assert taken.index == applied
    if applied:
        await asyncio.to_thread(load_snapshot, at, bench)
        check(bench, log.models[applied])
    futures = []
    for _ in range(rng.randrange(2, 10)):
        size = rng.randrange(1, 6)
        log.upto(applied + size)
        entries = [m.LoggedEntry(index, log.entries[index - 1]) for index in range(applied + 1, applied + size + 1)]
        futures.append(end.apply(GROUP, REPLICA, first=applied + 1, last=applied + size, entries=entries))
        applied += size
    acknowledged = taken.index
    for future in futures[: rng.randrange(len(futures) + 1)]:
        acknowledged = await future
    return acknowledged


async def test_killed_while_restoring(tmp_path: Path, start: Start) -> None:
    """After SIGKILL during a restore the state is the old one or the new one, never a mixture."""
    rng = random.Random(5)
    source = Bench(tmp_path / "source")
    source.open()
    source.apply(
        columns(), *(upsert([{"id": n, "name": "x"} for n in range(at, at + 500)]) for at in range(0, 9500, 500))
    )
    source.fold()
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    with source.engine.database.cursor() as cursor:
        write_files(cursor, source.group.layout, source.group.kept(), snapshot, throttle=SnapshotThrottle())
    source.close()
    handler = Sidecar()
    end = SidecarSocket(tmp_path / "sm.sock", volume="vol-1", handler=handler)
    await end.start()
    seen = set()
    for life in range(4):
        process = await start(dies_at=0 if life in (1, 3) else rng.randrange(4, 18))
        await handler.hello.get()
        with contextlib.suppress(DisconnectedError):
            opened = await end.open(GROUP, REPLICA, table="orders.1")
            seen.add(opened.applied)
            assert opened.applied in (0, 20)
            if opened.applied:
                bench = Bench(tmp_path / f"bench-{life}")
                bench.open()
                (tmp_path / f"check-{life}").mkdir()
                await end.snapshot(GROUP, REPLICA, tmp_path / f"check-{life}")
                await asyncio.to_thread(load_snapshot, tmp_path / f"check-{life}", bench)
                assert bench.ids() == list(range(9500))
                bench.close()
            assert await end.restore(GROUP, REPLICA, snapshot, index=20) == m.Applied(20)
        await die(process)
        await handler.gone.wait()
    assert seen == {0, 20}
    await end.close()


async def test_serves_without_etcd(tmp_path: Path, start: Start) -> None:
    """A store without a metastore serves reads and writes from its database, hands over and stops."""
    sidecar = Single(tmp_path / "sm.sock")
    sidecar.group("orders.1").add(columns())
    await sidecar.end.start()
    process = await start()
    running = await event(process, "running")
    await sidecar.ready.wait()
    client = Client(f"grpc://127.0.0.1:{running['flight_port']}")
    await client.put([{"id": 1, "name": "x"}])
    assert await client.rows(columns=["id", "name"]) == [{"id": 1, "name": "x"}]
    await client.close()
    process.terminate()
    await sidecar.drained.wait()
    assert (await process.wait(), process.returncode) == (0, 0)
    await sidecar.end.close()


async def test_http_endpoints(tmp_path: Path, start: Start) -> None:
    """Probes and metrics work; a store without its sidecar is alive but not ready."""
    process = await start()
    port = (await event(process, "running"))["http_port"]

    def fetch(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert await asyncio.to_thread(fetch, "/healthz") == (200, "alive\n")
    assert await asyncio.to_thread(fetch, "/readyz") == (503, "the sidecar is not connected\n")
    sidecar = Single(tmp_path / "sm.sock")
    sidecar.group("orders.1").add(columns())
    await sidecar.end.start()
    await sidecar.ready.wait()
    assert await asyncio.to_thread(fetch, "/readyz") == (200, "ready\n")
    status, metrics = await asyncio.to_thread(fetch, "/metrics")
    assert status == 200
    assert "evenkeel_store_partitions 1.0" in metrics
    await sidecar.end.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--socket", "/" + "x" * 200], "at most 107"),
        (["--data", "/proc/nothing/here"], "--data"),
        (["--reserve", "much"], "--reserve 'much': write a size like"),
        (["--tls-cert", "x"], "must be given together"),
        (["--tls-cert", "/none", "--tls-key", "/none"], "TLS file /none"),
        (["--token-file", "/none"], "--token-file /none"),
        (["--store", ""], "--store"),
    ],
)
def test_wrong_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    """An invalid option ends the process with one line that names it."""
    monkeypatch.setattr("evenkeel_store.process.main.set_up_logs", lambda **_: None)
    assert main([*flags(tmp_path), *options]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1


async def test_port_in_use(start: Start, tmp_path: Path) -> None:
    """The error for a port in use names the port."""
    port = free_port()
    first = await start("--listen", f"127.0.0.1:{port}")
    await event(first, "running")
    second = await start("--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "other"))
    _, stderr = await second.communicate()
    assert f"cannot serve Flight on 127.0.0.1:{port}" in stderr.decode()

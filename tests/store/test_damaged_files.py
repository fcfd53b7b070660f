"""Files of real stores, damaged in many ways while rows are written: detected, reported, refused or repaired."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from evenkeel.errors import DiskFullError
from evenkeel.protocol.records import StoreLoad, decode
from tests.process.process_cluster import KEYS, StoreProcesses, end
from tests.store.cluster import TableCluster
from tests.store.file_damage import flip, flip_rows

pytestmark = pytest.mark.processes

_ROWS = 20_000


@pytest.fixture
async def cluster(new_directory: Callable[[], Path]) -> AsyncIterator[TableCluster]:
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(TableCluster(new_directory(), partitions=1))
        await made.reconcile(3)
        await made.until_settled()
        rng = random.Random(1)
        texts = [rng.randbytes(40).hex() for _ in range(_ROWS)]
        rows = pa.record_batch({"id": list(range(_ROWS)), "customer": texts})
        await made.write(rows, writer="first", sequence=1)
        await made.hashes(0)
        yield made


class Written:
    """The ids of all acknowledged rows."""

    def __init__(self) -> None:
        self.ids: list[int] = []


@asynccontextmanager
async def writing(cluster: TableCluster) -> AsyncIterator[Written]:
    written, done = Written(), asyncio.Event()

    async def write() -> None:
        sequence = 0
        while not done.is_set():
            sequence += 1
            number = _ROWS + sequence
            batch = pa.record_batch({"id": [number], "customer": ["written during damage"]})
            await cluster.write(batch, writer="w", sequence=sequence)
            written.ids.append(number)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(write())
    try:
        yield written
    finally:
        done.set()
        await task


def _halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DATABASE, WAL = "tables.duckdb", "tables.duckdb.wal"
KINDS: dict[str, tuple[str, signal.Signals, Callable[[Path], None], str]] = {
    "the header of the database": (DATABASE, signal.SIGTERM, flip(0, 4096), "not a valid DuckDB database"),
    "a block of the database": (DATABASE, signal.SIGTERM, flip_rows, "checksum"),
    "a truncated database": (DATABASE, signal.SIGTERM, _halve, "Could not read enough bytes"),
    "a missing database": (DATABASE, signal.SIGTERM, Path.unlink, "transactions are lost"),
    "the beginning of its log": (WAL, signal.SIGKILL, flip(0), "transactions are lost"),
    "the middle of its log": (WAL, signal.SIGKILL, flip(0.5), "Corrupt WAL file"),
    "a truncated log": (WAL, signal.SIGKILL, _halve, "transactions are lost"),
    "a missing log": (WAL, signal.SIGKILL, Path.unlink, "transactions are lost"),
}


async def test_database_files(cluster: TableCluster) -> None:
    """Each kind of damage, on another store each time, is reported and repaired."""
    async with writing(cluster) as written:
        for place, (what, (name, how, damage, said)) in enumerate(KINDS.items()):
            victim = list(cluster.stores.values())[place % 3]
            before = _log_text(victim)
            await end(victim.state_machine, how)
            damage(victim.directory / "tables" / name)
            await victim.start_state_machine()
            await _until_equal(cluster, what)
            await _until_reported(cluster, victim, said, before)
    await _is_whole(cluster, written.ids)


async def _until_equal(cluster: TableCluster, what: str) -> None:
    hashes = await cluster.hashes(0)
    assert len(set(hashes.values())) == 1, f"{what}: {hashes}"


def _log_text(store: StoreProcesses) -> str:
    """Return the logs of a store's processes."""
    return "".join((store.directory / f"{what}.log").read_text() for what in ("sidecar", "state_machine"))


async def _until_reported(cluster: TableCluster, victim: StoreProcesses, said: str, before: str) -> None:
    """Wait until a store's log, or its report in the metastore, contains a text."""

    async def is_reported() -> bool:
        count = _log_text(victim).count(said)
        return count > before.count(said) or said in await _problems(cluster, victim.name)

    await cluster.until(is_reported)


async def _problems(cluster: TableCluster, store: str) -> str:
    kv = await cluster.metastore.get(KEYS.load(store))
    return "" if kv is None else "\n".join(decode(StoreLoad, kv.value, key=kv.key).problems.values())


async def _is_whole(cluster: TableCluster, written: list[int]) -> None:
    """Assert that all replicas have exactly the acknowledged rows."""
    await _until_equal(cluster, "in the end")
    rows = await cluster.insist(0, lambda client: client.get(partition=0, columns=["id"]))
    assert sorted(rows.column("id").to_pylist()) == [*range(_ROWS), *written]


def _frames(log: Path) -> list[int]:
    """Return the offsets of a log's rounds."""
    data, magic = log.read_bytes(), b"\xf0EK\x0f"
    found, at = [], data.find(magic)
    while at >= 0:
        found.append(at)
        at = data.find(magic, at + 1)
    return found


def _flip_round(which: Callable[[list[int]], int]) -> Callable[[Path], None]:
    return lambda log: flip(which(_frames(log)) + 30, 1)(log)


def _tear(log: Path) -> None:
    """Append the first bytes of a round, like a crash during a write."""
    data = bytearray(log.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end : end + 20] = data[(last := _frames(log)[-1]) : last + 20]
    log.write_bytes(data)


REFUSED: dict[str, Callable[[Path], None]] = {
    "a round in the middle": _flip_round(lambda frames: frames[len(frames) // 2]),
    "a truncated segment": lambda log: os.truncate(log, _frames(log)[-1]),
}
REPAIRED: dict[str, Callable[[Path], None]] = {
    "the header of a segment": flip(20, 1),
    "a torn end": _tear,
}


async def test_raft_log(cluster: TableCluster) -> None:
    """Damage to durable rounds is refused with file and offset, and other stores go on; other damage is repaired."""
    victim = cluster.stores["s2"]
    log, sidecar = victim.directory / "raft" / "log" / "00000000.log", victim.directory / "sidecar.log"
    async with writing(cluster) as written:
        await victim.end()
        kept = log.read_bytes()
        for what, damage in REFUSED.items():
            before = len(sidecar.read_text())
            damage(log)
            await victim.start_sidecar()
            assert victim.sidecar is not None
            async with asyncio.timeout(30):
                assert await victim.sidecar.wait() == 1, what
            said = sidecar.read_text()[before:]
            assert log.name in said, f"{what}: {said}"
            assert "replace this store's volume" in said, what
            assert "Traceback" not in said, what
            log.write_bytes(kept)
        for what, damage in REPAIRED.items():
            damage(log)
            await victim.start()
            await _until_equal(cluster, what)
            await victim.end()
        await victim.start()
    await _is_whole(cluster, written.ids)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system for the files of store `s1`."""
    directory = tmp_path / "c" / "s1"
    directory.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=400m", "evenkeel-test", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


async def test_full_disk(small_disk: Path) -> None:
    """On a full disk writes fail with `disk_full` and reads work; with free space writes work again."""
    flags = ("--reserve", "64Mi")
    async with TableCluster(small_disk.parent, stores=1, partitions=1, machine_flags=flags) as cluster:
        await cluster.reconcile(1)
        await cluster.until_settled()
        rows = pa.record_batch({"id": list(range(1000)), "customer": ["before"] * 1000})
        await cluster.write(rows, writer="w", sequence=1)
        balloon = small_disk / "balloon"
        with balloon.open("wb") as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                file.flush()
        client = cluster.client("s1")
        with pytest.raises(DiskFullError, match="64"):
            await client.put([{"id": 5000}], partition=0)
        assert (await client.act("status", table="orders"))["full"]
        assert (await client.get(partition=0)).num_rows == 1000
        with pytest.raises(DiskFullError):
            await client.put([{"id": 5000}], partition=0)
        balloon.unlink()
        await cluster.insist(0, lambda client: client.put([{"id": 5000}], partition=0))
        assert (await client.get(partition=0)).num_rows == 1001
        await client.close()

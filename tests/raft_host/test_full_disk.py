"""A full disk: writes are refused, other stores lead, and the store recovers when there is space."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from evenkeel.wire.socket_messages import Busy, Committed, NotLeader
from evenkeel_reference.reference_entries import Upsert, encode_entry
from tests.raft_host.support import ORDERS, Cluster, Member, NewCluster, replica_of

SIZE = 12 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of twelve megabytes for the store `a`.

    Request it before the cluster, so that it is unmounted after the cluster is closed.
    """
    directory = tmp_path / "a" / "raft"
    directory.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "evenkeel-test", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


class Balloon:
    """A file that takes all free space."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "balloon"

    def blow_up(self) -> None:
        """Take all space, even if the log allocates some at the same time."""
        with self._path.open("wb") as file:
            while room := os.statvfs(self._path.parent).f_bavail:
                with suppress(OSError):
                    size = os.fstat(file.fileno()).st_size
                    os.posix_fallocate(file.fileno(), size, room * os.statvfs(self._path.parent).f_bsize)

    def prick(self) -> None:
        self._path.unlink()


async def fill(cluster: Cluster, store: Member, values: dict[str, str]) -> None:
    """Write until a store's disk is full."""
    while not store.host.full:
        more = {f"k{(len(values) + number) % 300}": "v" * 20_000 for number in range(10)}
        await cluster.write(**more)
        values |= more


async def test_a_full_disk_with_other_stores(small_disk: Path, new_cluster: NewCluster) -> None:
    """Another store leads and serves; with space again, the store has missed nothing and may lead."""
    cluster = await new_cluster("a", "b", "c")
    poor, balloon, values = cluster["a"], Balloon(small_disk), dict[str, str]()
    await cluster.begin("a", "b", "c")
    balloon.blow_up()
    await fill(cluster, poor, values)
    assert "no room" in poor.host.full
    await cluster.until(lambda: cluster.leader() not in (None, poor))
    await cluster.write(x="1")
    assert isinstance(await _answer(cluster, poor), Busy | NotLeader)
    submissions = len(poor.host._context.writer._worker._rounds)
    writes = len(replica_of(poor).node._raft.log.writes)
    until = cluster.clock.now() + 30
    await cluster.until(lambda: cluster.clock.now() > until)
    assert len(poor.host._context.writer._worker._rounds) <= submissions + 2, "waiting costs memory"
    assert len(replica_of(poor).node._raft.log.writes) <= writes + 2
    balloon.prick()
    await cluster.until(lambda: not poor.host.full)
    await cluster.equal("abc", {**values, "x": "1"})

    def led() -> bool:
        if cluster.leader() not in (None, poor):
            cluster.leading().host.transfer(ORDERS, ("a", 1))
        return cluster.leader() is poor

    await cluster.until(led)
    await cluster.write(y="2")


async def test_a_full_disk_without_other_stores(small_disk: Path, new_cluster: NewCluster) -> None:
    """If no store can take over, writes are refused as busy and never lost."""
    cluster = await new_cluster("a")
    poor, balloon, values = cluster["a"], Balloon(small_disk), dict[str, str]()
    await cluster.begin("a")
    balloon.blow_up()
    pending = []
    while not poor.host.full:
        values |= {f"k{len(values)}": "v" * 20_000}
        pending.append(cluster.propose(poor, _entry(cluster, f"k{len(values) - 1}")))
        await cluster.until(lambda: pending[-1].done() or poor.host.full)
    assert await _answer(cluster, poor) == Busy()
    balloon.prick()
    await cluster.until(lambda: all(future.done() for future in pending))
    assert all(isinstance(future.result(), Committed) for future in pending)
    await cluster.equal("a", values)
    assert isinstance(await _answer(cluster, poor), Committed)


async def test_a_start_on_a_full_disk(small_disk: Path, new_cluster: NewCluster) -> None:
    """A process that starts on a full disk catches up once there is space."""
    cluster = await new_cluster("a", "b", "c")
    poor, balloon, values = cluster["a"], Balloon(small_disk), dict[str, str]()
    await cluster.begin("a", "b", "c")
    balloon.blow_up()
    await fill(cluster, poor, values)
    await poor.stop_machine()
    await poor.stop()
    await poor.start()
    await poor.start_state_machine()
    cluster.introduce()
    await cluster.write(x="1")
    balloon.prick()
    await cluster.equal("abc", {**values, "x": "1"})


def _entry(cluster: Cluster, key: str) -> bytes:
    return encode_entry(Upsert("", 0, key.encode(), b"v" * 20_000))


async def _answer(cluster: Cluster, store: Member) -> object:
    future = cluster.propose(store, _entry(cluster, "k0"))
    await cluster.until(future.done)
    return future.result()

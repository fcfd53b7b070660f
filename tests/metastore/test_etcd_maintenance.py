"""An etcd that has used up its quota: what still works, how it is reported, and how space is freed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from evenkeel.errors import NoSpaceError
from evenkeel.metastore import etcd_maintenance
from evenkeel.metastore.etcd_maintenance import Maintenance, ReliefSchedule
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdBinary, EtcdCluster, EtcdServer
from evenkeel.metastore.metastore_api import Delete, Put, Txn
from tests.metastore.support import FAST_ELECTIONS, delete, events_until, of_key, persistent_txn, put, settings_for

TINY = f"--quota-backend-bytes={2 << 20}"


async def fill(store: EtcdMetastore) -> None:
    """Write one key repeatedly until its history has used up the quota."""
    with contextlib.suppress(NoSpaceError):
        for _ in range(200):
            await store.txn(put("/filling", bytes(100_000)))
        raise AssertionError("the quota is not used up")


@pytest.fixture
async def full(new_server: Callable[..., EtcdServer]) -> AsyncIterator[EtcdServer]:
    async with new_server(extra_args=(TINY,)) as server:
        async with EtcdMetastore(settings_for(server.endpoint)) as store:
            await fill(store)
        yield server


async def test_a_full_etcd_refuses_only_writes(full: EtcdServer) -> None:
    """Writes and new leases fail with NoSpaceError; reads, deletions and probes succeed."""
    async with EtcdMetastore(settings_for(full.endpoint)) as store:
        assert "NOSPACE" in await store.full()
        with pytest.raises(NoSpaceError, match="alarm NOSPACE"):
            await store.txn(put("/more"))
        with pytest.raises(NoSpaceError):
            await store.lease(10)
        assert await store.get("/filling") is not None
        assert (await store.txn(delete("/filling"))).succeeded
        await full.ready(within=5)


async def test_leases_can_be_refreshed_in_a_full_etcd(new_server: Callable[..., EtcdServer]) -> None:
    """Leases can be refreshed, so a registered store stays registered."""
    async with new_server(extra_args=(TINY,)) as server, EtcdMetastore(settings_for(server.endpoint)) as store:
        lease = await store.lease(5)
        await store.txn(put("/leased", lease=lease.id))
        await fill(store)
        assert await lease.refresh()


async def test_a_full_etcd_starts_again(full: EtcdServer) -> None:
    """A full etcd can be restarted: it becomes ready, because readiness depends on reads only."""
    await full.terminate()
    await full.start(within=20)


async def test_space_is_freed(full: EtcdServer) -> None:
    """After relief etcd accepts writes, its file is small, watches missed nothing, and a second relief does nothing."""
    database = full.data_dir / "data" / "member" / "snap" / "db"
    before = database.stat().st_size
    async with EtcdMetastore(settings_for(full.endpoint)) as store, Maintenance(full.settings()) as maintenance:
        watch = store.watch("/w/", after=await store.range("/w/"))
        following = asyncio.create_task(events_until(watch, of_key("/w/after")))
        assert await maintenance.relieve()
        assert not await maintenance.relieve()
        assert await store.full() == ""
        await store.txn(put("/w/after"))
        assert [event.key for event in await following] == ["/w/after"]
    assert database.stat().st_size < before / 2


async def test_a_watch_that_is_behind_survives_the_compaction(full: EtcdServer) -> None:
    """A watch whose history was compacted by the relief delivers the difference."""
    async with EtcdMetastore(settings_for(full.endpoint)) as store, Maintenance(full.settings()) as maintenance:
        before = await store.range("/filling")
        await store.txn(delete("/filling"))
        await maintenance.relieve()
        watch = store.watch("/filling", after=before)
        assert [event.kv for event in await events_until(watch, of_key("/filling"))] == [None]


async def test_the_alarm_stays_if_nothing_can_be_freed(new_server: Callable[..., EtcdServer]) -> None:
    """If relief frees too little, the alarm stays; after deletions it succeeds."""
    async with new_server(extra_args=(TINY,)) as server, EtcdMetastore(settings_for(server.endpoint)) as store:
        # Two such values fill three pages, so few transactions store more than the quota admits.
        for batch, count in enumerate((100, 100, 100, 50)):
            await store.txn(Txn(success=tuple(Put(f"/live/{batch}/{number}", bytes(4200)) for number in range(count))))
        await fill(store)
        async with Maintenance(server.settings()) as maintenance:
            with pytest.raises(NoSpaceError, match=r"its quota is 2097152; raise the quota"):
                await maintenance.relieve()
            assert await store.full()
            await store.txn(Txn(success=(Delete("/live/", prefix=True),)))
            assert await maintenance.relieve()
        await store.txn(put("/after"))


def test_attempts_become_rare() -> None:
    """Each wait is twice the last, up to a limit; after a long pause the next attempt is immediate."""
    schedule, attempts = ReliefSchedule(), []
    for check in range(300):
        if schedule.due():
            attempts.append(check)
            schedule.attempted()
    waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert (attempts[0], waits) == (0, [2, 4, 8, 16, 32, 64, 64, 64])
    assert [schedule.due() for _ in range(1000)][-1]
    schedule.attempted()
    assert [schedule.due(), schedule.due()] == [False, True], "it begins with short waits again"


@pytest.mark.parametrize(
    ("sizes", "ended"),
    [
        ([], False),
        ([90, 50, 50, 50], False),
        ([90, 50, 50, 50, 50, 50], True),
        ([90, 50, 50, 50, 50, 40], False),
        ([90] * 40, False),
        ([90] * 50, True),
        ([90] * 30 + [40] * 5, True),
    ],
)
def test_a_compaction_that_starts_late_is_awaited(sizes: list[int], ended: bool) -> None:
    """A member's compaction has ended when its size is steady and has shrunk, or never shrinks for ten seconds."""
    assert etcd_maintenance._ended(sizes, 90) is ended


async def test_every_member_is_defragmented(etcd_binary: EtcdBinary, tmp_path: Path) -> None:
    """Members are defragmented one by one; an unreachable member does not block the others and is done later."""
    async with EtcdCluster(tmp_path, binary=etcd_binary, extra_args=(*FAST_ELECTIONS, TINY)) as cluster:
        files = [member.data_dir / "data" / "member" / "snap" / "db" for member in cluster.members]
        settings = settings_for(*cluster.endpoints)
        async with EtcdMetastore(settings) as store, Maintenance(settings) as maintenance:
            await fill(store)
            before = [file.stat().st_size for file in files]
            await cluster.members[0].terminate()
            assert await maintenance.relieve()
            await persistent_txn(store, put("/after"))
            shrunk = [after.stat().st_size < size / 2 for after, size in zip(files, before, strict=True)]
            assert shrunk == [False, True, True]
            await cluster.members[0].start()
